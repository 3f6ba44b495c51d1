#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "error.h"
#include "json.h"
#include "kernels/noise.h"
#include "sampling/generate.h"
#include "unit.h"
#include "xxh3.h"

using namespace edgekit;

namespace {

using Ids = std::vector<std::int64_t>;

std::uint64_t mixed(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Scores are a hash of the prefix, the canvas and the position, a few values only so that there are ties.
class HashDenoiser : public Denoiser {
 public:
  explicit HashDenoiser(std::int64_t vocabulary) : vocabulary_(vocabulary) {}

  std::vector<HeadResult> pass(const std::vector<AskSegment> &) override { return {}; }
  void crop(std::int64_t) override {}

  std::int64_t vocabulary() const override { return vocabulary_; }
  std::int64_t hidden_size() const override { return 3; }
  std::int64_t prefix_length() const override { return static_cast<std::int64_t>(prefix_.size()); }
  void reset() override { prefix_.clear(); }
  void prefill(const std::int64_t *ids, std::int64_t count) override {
    prefix_.insert(prefix_.end(), ids, ids + count);
  }

  HeadResult denoise(const std::int64_t *ids, std::int64_t count, const HeadRequest &request,
                     const float *soft) override {
    ++passes;
    static std::uint64_t all = 0;
    last_pass_ = ++all;
    state_ = 1;
    for (const std::int64_t id : prefix_) state_ = mixed(state_ ^ static_cast<std::uint64_t>(id));
    for (std::int64_t i = 0; i < count; ++i) state_ = mixed(state_ ^ static_cast<std::uint64_t>(ids[i]));
    if (soft != nullptr) state_ = mixed(state_ ^ static_cast<std::uint64_t>(1000.0f * soft[count * 3 - 1]));
    positions_ = count;
    return project(request);
  }

  std::uint64_t last_pass() const override { return last_pass_; }

  HeadResult project(const HeadRequest &request) override {
    HeadResult result;
    const std::size_t rows = request.all_rows ? static_cast<std::size_t>(positions_) : request.rows.size();
    std::vector<float> z(static_cast<std::size_t>(vocabulary_));
    for (std::size_t r = 0; r < rows; ++r) {
      const std::int64_t position = request.all_rows ? static_cast<std::int64_t>(r) : request.rows[r];
      for (std::size_t v = 0; v < z.size(); ++v) {
        const std::uint64_t hash = mixed(state_ ^ mixed(static_cast<std::uint64_t>(position) << 32 | v));
        z[v] = broken ? std::numeric_limits<float>::quiet_NaN()
                      : static_cast<float>(hash % 16) / (2 * request.temperature);
      }
      add_row(request, r, rows, z, result);
    }
    return result;
  }

  std::int64_t passes = 0;
  bool broken = false;
  bool keeps = true;  // the hidden states of a pass

 private:
  std::uint64_t last_pass_ = 0;

  void add_row(const HeadRequest &request, std::size_t r, std::size_t rows, const std::vector<float> &z,
               HeadResult &result) const {
    const auto best = std::max_element(z.begin(), z.end()) - z.begin();
    double sum = 0, weighted = 0;
    for (const float value : z) sum += std::exp(static_cast<double>(value));
    const double log_z = std::log(sum);
    for (const float value : z) weighted += std::exp(value - log_z) * value;
    result.argmax.push_back(best);
    result.others.push_back(static_cast<float>(std::exp(log_z - z[static_cast<std::size_t>(best)]) - 1));
    result.entropy.push_back(static_cast<float>(log_z - weighted));
    result.log_z.push_back(static_cast<float>(log_z));
    if (request.gumbel) {
      std::vector<float> noise(z.size() * rows);
      gumbel_noise(request.gumbel->seed, request.gumbel->draw, 0, static_cast<std::int64_t>(noise.size()),
                   noise.data());
      std::size_t sample = 0;
      float top = -std::numeric_limits<float>::infinity();
      for (std::size_t v = 0; v < z.size(); ++v) {
        const float value = z[v] + request.gumbel->scale * noise[v * rows + r];
        if (value > top) {
          top = value;
          sample = v;
        }
      }
      result.sample.push_back(static_cast<std::int64_t>(sample));
      result.sample_prob.push_back(static_cast<float>(std::exp(z[sample] - log_z)));
    }
    if (request.soft) result.soft.insert(result.soft.end(), {z[0], z[1], static_cast<float>(log_z)});
    if (request.top_k > 0) {
      Ids order(z.size());
      for (std::size_t v = 0; v < z.size(); ++v) order[v] = static_cast<std::int64_t>(v);
      std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        return z[static_cast<std::size_t>(a)] > z[static_cast<std::size_t>(b)];
      });
      for (std::int64_t k = 0; k < request.top_k; ++k) {
        result.top_ids.push_back(order[static_cast<std::size_t>(k)]);
        result.top_z.push_back(z[static_cast<std::size_t>(order[static_cast<std::size_t>(k)])]);
      }
    }
    if (request.logits) result.logits.insert(result.logits.end(), z.begin(), z.end());
  }

  std::int64_t vocabulary_;
  std::int64_t positions_ = 0;
  std::uint64_t state_ = 0;
  Ids prefix_;
};

constexpr std::int64_t kVocabulary = 50;

SamplerOptions options_of(const std::string &name, const std::string &overrides) {
  return sampler_options(name, members_of(Json::parse(R"({"mask_id": 49, "eos_token_id": [48]})", "config")),
                         members_of(Json::parse(overrides, "overrides")), 0);
}

struct Seen {
  std::int64_t drafts = 0, committed = 0, done = 0;
  Ids answer;
};

// What a denoiser is to a sampler.
SamplerModel facts(const HashDenoiser &denoiser) {
  SamplerModel model = model_of(denoiser);
  model.projects = denoiser.keeps;
  return model;
}

// Does what is asked, as whoever drives a sampler.
HeadResult answered(const Ask &ask, Denoiser &denoiser) {
  const auto count = static_cast<std::int64_t>(ask.ids.size());
  if (ask.kind == AskKind::forget) denoiser.forget();
  if (ask.kind == AskKind::encode) denoiser.encode(ask.ids);
  if (ask.kind == AskKind::committed && !ask.kept.empty()) denoiser.keep(ask.kept);
  if (ask.kind == AskKind::denoise)
    return denoiser.denoise(ask.ids.data(), count, ask.request, ask.soft.empty() ? nullptr : ask.soft.data());
  if (ask.kind == AskKind::project) return denoiser.project(ask.request);
  return {};
}

// A generation's outcome: what was told, the counters, and how it ended.
struct Outcome {
  Seen seen;
  Stats stats;
  ek_status status = EK_OK;
};

// Checks what every event must hold.
class Listener {
 public:
  explicit Listener(Seen &seen, std::int64_t stop = 0) : seen_(seen), stop_(stop) {}

  bool operator()(const Ask &event, const Stats &stats) {
    if (event.kind == AskKind::draft) {
      ++seen_.drafts;
      EK_CHECK(stats.denoising_steps == seen_.drafts);
      EK_CHECK(event.accepted.size() == event.ids.size());
      EK_CHECK(std::count(event.accepted.begin(), event.accepted.end(), 1) > 0);
    } else if (event.kind == AskKind::committed) {
      ++seen_.committed;
      EK_CHECK(event.start == static_cast<std::int64_t>(seen_.answer.size()));
      seen_.answer.insert(seen_.answer.end(), event.ids.begin(), event.ids.end());
    } else {
      ++seen_.done;
    }
    for (const std::int64_t id : event.ids) EK_CHECK(id >= 0 && id < kVocabulary);
    return seen_.drafts + seen_.committed != stop_;
  }

 private:
  Seen &seen_;
  std::int64_t stop_;  // number of the event that ends it; 0: none
};

// A whole generation, stopped at event number `stop`, if that is not 0.
Outcome run(HashDenoiser &denoiser, const SamplerOptions &options, std::uint64_t seed, std::int64_t stop = 0,
            const Ids &prompt = {1, 2, 3}) {
  Outcome outcome;
  std::unique_ptr<Sampler> own;
  try {
    own = sampler(options, facts(denoiser), prompt, seed);
    run(*own, denoiser, Listener(outcome.seen, stop));
  } catch (const Error &error) {
    outcome.status = error.status();
  }
  if (own) outcome.stats = own->stats();
  return outcome;
}

// What a sampler has still to commit.
Ids committed_by(Sampler &sampler, Denoiser &denoiser) {
  Ids tokens;
  run(sampler, denoiser, [&](const Ask &event, const Stats &) {
    if (event.kind == AskKind::committed) tokens.insert(tokens.end(), event.ids.begin(), event.ids.end());
    return true;
  });
  return tokens;
}

ek_status status_of(const std::function<void()> &call) {
  try {
    call();
  } catch (const Error &error) {
    return error.status();
  }
  return EK_OK;
}

const char *const kCases[][2] = {
    {"diffusion_gemma", R"({"max_new_tokens": 20, "canvas_length": 7, "max_denoising_steps": 5, "pad_token_id": 0})"},
    {"diffusion_gemma", R"({"max_length": 30, "canvas_length": 5, "max_denoising_steps": 9, "entropy_bound": 4,
                            "stability_threshold": 0, "confidence_threshold": 9})"},
    {"llada", R"({"gen_length": 24, "block_length": 8, "steps": 12, "temperature": 0.7, "remasking": "random"})"},
    {"llada", R"({"gen_length": 24, "block_length": 8, "threshold": 0.1, "stop_at_eos": true})"},
    {"llada", R"({"gen_length": 16, "block_length": 16, "factor": 1.4, "cfg_scale": 0.5, "temperature": 1,
                  "logits_eos_inf": true, "logits_budget_bytes": 600})"},
    {"llada", R"({"gen_length": 16, "block_length": 16, "steps": 4, "logits_eos_inf": true,
                  "confidence_eos_eot_inf": true, "logits_budget_bytes": 600})"},
    {"dream", R"({"max_new_tokens": 20, "steps": 9, "temperature": 0.8})"},
    {"dream", R"({"max_new_tokens": 20, "steps": 9, "alg": "topk_margin", "alg_temp": 0.4})"},
    {"dream", R"({"max_new_tokens": 20, "steps": 9, "alg": "entropy", "top_p": 0.8, "temperature": 1,
                  "logits_budget_bytes": 600})"},
    {"dream", R"({"max_new_tokens": 20, "steps": 9, "alg": "maskgit_plus", "top_k": 5, "top_p": 0.5,
                  "stop_at_eos": true})"},
};

}  // namespace

EK_TEST(sampling_events_and_counters_agree_and_seeds_repeat) {
  for (const auto &one : kCases) {
    const SamplerOptions options = options_of(one[0], one[1]);
    HashDenoiser denoiser(kVocabulary);
    const Outcome first = run(denoiser, options, 7);
    EK_CHECK(first.status == EK_OK && first.seen.done == 1 && !first.seen.answer.empty());
    EK_CHECK(first.stats.forwards == denoiser.passes);
    EK_CHECK(first.stats.finish_reason != FinishReason::cancelled);
    const Outcome second = run(denoiser, options, 7);
    EK_CHECK(second.seen.answer == first.seen.answer);
    EK_CHECK(second.stats.denoising_steps == first.stats.denoising_steps);
    const auto own = sampler(options, facts(denoiser), {1, 2, 3}, 7);
    run(*own, denoiser, {});  // nobody listens
    EK_CHECK(own->stats().committed_tokens == first.stats.committed_tokens);
  }
}

EK_TEST(sampling_can_be_stopped_at_every_event) {
  for (const auto &one : kCases) {
    const SamplerOptions options = options_of(one[0], one[1]);
    HashDenoiser denoiser(kVocabulary);
    const Outcome full = run(denoiser, options, 3);
    for (std::int64_t stop = 1; stop <= full.seen.drafts + full.seen.committed; ++stop) {
      const Outcome part = run(denoiser, options, 3, stop);
      EK_CHECK(part.status == EK_STOPPED && part.stats.finish_reason == FinishReason::cancelled);
      EK_CHECK(part.seen.answer.size() <= full.seen.answer.size());
      EK_CHECK(std::equal(part.seen.answer.begin(), part.seen.answer.end(), full.seen.answer.begin()));
    }
  }
}

EK_TEST(sampling_goes_on_after_a_stop) {
  for (const auto &one : kCases) {
    HashDenoiser denoiser(kVocabulary);
    const SamplerOptions options = options_of(one[0], one[1]);
    const Outcome full = run(denoiser, options, 3);
    const auto own = sampler(options, facts(denoiser), {1, 2, 3}, 3);
    Ids tokens;
    std::int64_t stops = 0;
    for (bool done = false; !done;) {
      try {
        run(*own, denoiser, [&](const Ask &event, const Stats &) {
          if (event.kind == AskKind::committed) tokens.insert(tokens.end(), event.ids.begin(), event.ids.end());
          return false;
        });
        done = true;
      } catch (const Error &error) {
        EK_CHECK(error.status() == EK_STOPPED);
        ++stops;
        own->next();  // what was told
      }
    }
    EK_CHECK(tokens == full.seen.answer && stops == full.seen.drafts + full.seen.committed);
    EK_CHECK(own->stats().finish_reason == full.stats.finish_reason);
  }
}

EK_TEST(sampling_copies_go_on_by_themselves) {
  for (const bool projects : {true, false}) {
    for (const auto &one : kCases) {
      const SamplerOptions options = options_of(one[0], one[1]);
      HashDenoiser denoiser(kVocabulary);
      denoiser.keeps = projects;
      const Outcome full = run(denoiser, options, 5);
      const auto own = sampler(options, facts(denoiser), {1, 2, 3}, 5);
      std::int64_t asked = 0;
      // A copy of every state, which runs to its end.
      for (; own->ask().kind != AskKind::done; ++asked) {
        const std::unique_ptr<Sampler> branch = own->copy();
        HashDenoiser other = denoiser;
        const Ids rest = committed_by(*branch, other);
        EK_CHECK(rest.size() <= full.seen.answer.size());
        EK_CHECK(std::equal(rest.rbegin(), rest.rend(), full.seen.answer.rbegin()));
        EK_CHECK(branch->stats().forwards == full.stats.forwards);
        own->next(answered(own->ask(), denoiser));
      }
      EK_CHECK(asked > full.seen.drafts + full.seen.committed);
    }
  }
}

EK_TEST(sampling_refuses_another_text_and_runs_its_pass_again_behind_another) {
  std::int64_t texts = 0, projections = 0;
  for (const auto &one : kCases) {
    for (const AskKind at : {AskKind::draft, AskKind::project}) {
      HashDenoiser denoiser(kVocabulary);
      const SamplerOptions options = options_of(one[0], one[1]);
      const auto own = sampler(options, facts(denoiser), {1, 2, 3}, 3);
      Ids tokens = committed_by(*own->copy(), denoiser);
      denoiser.reset();
      while (own->ask().kind != at && own->ask().kind != AskKind::done) {
        if (!answer(*own, denoiser)) own->next(answered(own->ask(), denoiser));
      }
      if (own->ask().kind == AskKind::done) continue;
      if (at == AskKind::draft) own->next();
      const Ids other{7, 8, 9};
      if (at == AskKind::draft) {
        if (denoiser.prefix_length() == 0 || own->ask().kind != AskKind::denoise) continue;
        denoiser.prefill(other.data(), 1);
        ++texts;
      } else {
        denoiser.denoise(other.data(), 3, {}, nullptr);
        ++projections;
      }
      if (at == AskKind::draft) {
        EK_CHECK(status_of([&] { answer(*own, denoiser); }) == EK_INVALID_STATE);
        EK_CHECK(status_of([&] { run(*own, denoiser, nullptr); }) == EK_INVALID_STATE);
        own->restore();
      }
      const Ids rest = committed_by(*own, denoiser);
      EK_CHECK(rest.size() <= tokens.size() && std::equal(rest.rbegin(), rest.rend(), tokens.rbegin()));
      EK_CHECK(!rest.empty());
    }
  }
  EK_CHECK(texts > 0 && projections > 0);
}

EK_TEST(sampling_goes_on_from_a_saved_state) {
  for (const bool projects : {true, false}) {
    for (const auto &one : kCases) {
      const SamplerOptions options = options_of(one[0], one[1]);
      HashDenoiser denoiser(kVocabulary);
      denoiser.keeps = projects;
      const Outcome full = run(denoiser, options, 5);
      const auto own = sampler(options, facts(denoiser), {1, 2, 3}, 5);
      Ids told;
      for (; own->ask().kind != AskKind::done; own->next(answered(own->ask(), denoiser))) {
        if (own->ask().kind == AskKind::committed)
          told.insert(told.end(), own->ask().ids.begin(), own->ask().ids.end());
        const std::string state = own->save("bundle");
        HashDenoiser other(kVocabulary);  // which holds nothing
        other.keeps = projects;
        const std::string again = load_sampler(state, facts(other), "bundle")->save("bundle");
        const auto loaded = load_sampler(again, facts(other), "bundle");
        Ids all = told;
        const Ids rest = committed_by(*loaded, other);
        all.insert(all.end(), rest.begin(), rest.end());
        EK_CHECK(all == full.seen.answer);
        EK_CHECK(loaded->stats().committed_tokens == full.stats.committed_tokens);
        EK_CHECK(loaded->stats().forwards == full.stats.forwards);
        EK_CHECK(loaded->stats().finish_reason == full.stats.finish_reason);
      }
      HashDenoiser other(kVocabulary);
      const auto done = load_sampler(own->save("bundle"), facts(other), "bundle");
      EK_CHECK(committed_by(*done, other).empty());
      EK_CHECK(other.uncached() == denoiser.uncached() && other.prefix_length() == denoiser.prefix_length());
    }
  }
}

EK_TEST(sampling_refuses_states_of_others_and_damaged_ones) {
  for (const auto &one : kCases) {
    HashDenoiser denoiser(kVocabulary);
    const auto own = sampler(options_of(one[0], one[1]), facts(denoiser), {1, 2, 3}, 5);
    while (own->stats().denoising_steps < 2 && own->ask().kind != AskKind::done)
      own->next(answered(own->ask(), denoiser));
    const std::string state = own->save("bundle");
    const auto status_of = [&](const std::string &bytes, const char *bundle, std::int64_t vocabulary) {
      HashDenoiser other(vocabulary);
      try {
        const auto loaded = load_sampler(bytes, facts(other), bundle);
        committed_by(*loaded, other);
      } catch (const Error &error) {
        return error.status();
      }
      return EK_OK;
    };
    EK_CHECK(status_of(state, "bundle", kVocabulary) == EK_OK);
    EK_CHECK(status_of(state, "another", kVocabulary) == EK_INVALID_ARGUMENT);
    EK_CHECK(status_of(state, "bundle", kVocabulary + 1) == EK_MALFORMED_FILE);
    EK_CHECK(status_of("", "bundle", kVocabulary) == EK_MALFORMED_FILE);
    for (std::size_t at = 0; at < state.size(); ++at) {
      std::string bad = state;
      bad[at] = static_cast<char>(bad[at] ^ 4);
      EK_CHECK(status_of(bad, "bundle", kVocabulary) != EK_OK);
      EK_CHECK(status_of(state.substr(0, at), "bundle", kVocabulary) != EK_OK);
      // Sealed anew by somebody: an error, or a generation that comes to an end.
      bad.resize(bad.size() - 8);
      const std::uint64_t seal = xxh3_64(bad.data(), bad.size());
      for (int i = 0; i < 8; ++i) bad += static_cast<char>(seal >> (8 * i) & 0xff);
      status_of(bad, "bundle", kVocabulary);
    }
  }
}

EK_TEST(sampling_asks_again_after_a_bad_answer) {
  for (const auto &one : kCases) {
    const SamplerOptions options = options_of(one[0], one[1]);
    HashDenoiser denoiser(kVocabulary);
    const Outcome full = run(denoiser, options, 5);
    const auto own = sampler(options, facts(denoiser), {1, 2, 3}, 5);
    Seen seen;
    Listener listener(seen);
    for (; own->ask().kind != AskKind::done; own->next(answered(own->ask(), denoiser))) {
      const AskKind kind = own->ask().kind;
      if (kind == AskKind::draft || kind == AskKind::committed) listener(own->ask(), own->stats());
      if (kind != AskKind::denoise && kind != AskKind::project) continue;
      denoiser.broken = true;
      bool refused = false;
      try {
        own->next(answered(own->ask(), denoiser));
      } catch (const Error &error) {
        refused = error.status() == EK_NOT_FINITE;
      }
      denoiser.broken = false;
      EK_CHECK(refused && own->ask().kind == kind);
    }
    EK_CHECK(seen.answer == full.seen.answer);
  }
}

EK_TEST(sampling_refuses_what_cannot_be_run) {
  const auto status_of = [](const SamplerOptions &options, const Ids &prompt, bool broken) {
    HashDenoiser denoiser(kVocabulary);
    denoiser.broken = broken;
    return run(denoiser, options, 0, 0, prompt).status;
  };
  LladaOptions llada;
  EK_CHECK(status_of(llada, {1}, false) == EK_INVALID_ARGUMENT);  // no mask token
  llada.mask_token_id = 49;
  llada.max_new_tokens = llada.block_length = llada.steps = 4;
  EK_CHECK(status_of(llada, {1}, false) == EK_OK);
  EK_CHECK(status_of(llada, {}, false) == EK_OK);
  EK_CHECK(status_of(llada, {kVocabulary}, false) == EK_INVALID_PROMPT);
  EK_CHECK(status_of(llada, {1}, true) == EK_NOT_FINITE);
  llada.block_length = 0;
  EK_CHECK(status_of(llada, {1}, false) == EK_INVALID_ARGUMENT);
  DiffusionGemmaOptions gemma;
  gemma.canvas_length = 4;
  EK_CHECK(status_of(gemma, {}, false) == EK_INVALID_PROMPT);
  EK_CHECK(status_of(gemma, {1}, true) == EK_NOT_FINITE);
  gemma.t_min = std::numeric_limits<double>::quiet_NaN();
  EK_CHECK(status_of(gemma, {1}, false) == EK_INVALID_ARGUMENT);
  DreamOptions dream;
  dream.mask_token_id = 49;
  dream.alg = "none";
  EK_CHECK(status_of(dream, {1}, false) == EK_INVALID_ARGUMENT);
}

EK_TEST(sampling_settles_the_options_of_a_generation) {
  const auto lengths_of = [](const std::string &name, const std::string &config, std::int64_t tokens,
                             const std::string &wished) {
    const Json own = Json::parse(config, "config"), given = Json::parse(wished, "wishes");
    const Json length = Json::parse(std::to_string(tokens), "wishes");
    OptionMembers wishes = members_of(given);
    if (tokens != 0) wishes.emplace_back("max_new_tokens", &length);
    const std::int64_t canvas = name == "diffusion_gemma" ? 16 : 0;
    const Lengths found = lengths(sampler_options(name, members_of(own), wishes, canvas), 10);
    return Ids{found.new_tokens, found.prefix, found.canvas};
  };
  const std::string masked = R"({"mask_id": 49, "eos_token_id": 48, "max_new_tokens": 64, "block_length": 16})";
  EK_CHECK((lengths_of("llada", masked, 0, "{}") == Ids{64, 0, 74}));
  EK_CHECK((lengths_of("llada", masked, 65, "{}") == Ids{80, 0, 90}));
  EK_CHECK((lengths_of("llada", masked, 0, R"({"gen_length": 5, "stop_at_eos": null})") == Ids{5, 0, 15}));
  const std::string whole = R"({"mask_id": 49, "eos_token_id": 48, "max_new_tokens": 64})";
  EK_CHECK((lengths_of("dream", whole, 0, R"({"gen_length": 65})") == Ids{65, 0, 75}));
  EK_CHECK((lengths_of("dream", masked, 0, R"({"gen_length": 65})") == Ids{80, 0, 90}));
  EK_CHECK((lengths_of("diffusion_gemma", "{}", 40, "{}") == Ids{48, 42, 16}));
  EK_CHECK((lengths_of("diffusion_gemma", "{}", kMostTokens, R"({"canvas_length": 3})")[0] == kMostTokens + 2));
  const auto refused = [&](const std::string &name, std::int64_t tokens, const std::string &overrides) {
    try {
      lengths_of(name, masked, tokens, overrides);
    } catch (const Error &error) {
      return error.status() == EK_INVALID_ARGUMENT;
    }
    return false;
  };
  for (const char *name : {"llada", "dream", "diffusion_gemma"}) {
    EK_CHECK(refused(name, -1, "{}"));
    EK_CHECK(refused(name, std::numeric_limits<std::int64_t>::max(), "{}"));
    EK_CHECK(refused(name, 0, R"({"max_new_tokens": [9223372036854775807]})"));
    EK_CHECK(refused(name, 4, R"({"no_such_option": 1})"));
    EK_CHECK(refused(name, 4, R"({"max_new_tokens": 4})"));  // twice
  }
}

EK_TEST(sampling_refuses_a_denoiser_that_returns_too_little) {
  class Short : public HashDenoiser {
   public:
    using HashDenoiser::HashDenoiser;
    HeadResult denoise(const std::int64_t *ids, std::int64_t count, const HeadRequest &request,
                       const float *soft) override {
      HeadResult result = HashDenoiser::denoise(ids, count, request, soft);
      if (!result.sample.empty()) result.sample.pop_back();
      return result;
    }
  };
  Short denoiser(kVocabulary);
  const Outcome outcome = run(denoiser, options_of("dream", R"({"temperature": 1, "max_new_tokens": 4, "steps": 2})"), 0);
  EK_CHECK(outcome.status == EK_INTERNAL);
}
