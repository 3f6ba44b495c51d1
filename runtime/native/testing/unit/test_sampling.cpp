#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "error.h"
#include "json.h"
#include "kernels/noise.h"
#include "sampling/generate.h"
#include "sampling/generation_options.h"
#include "sampling/option_visitor.h"
#include "unit.h"

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
    state_ = 1;
    for (const std::int64_t id : prefix_) state_ = mixed(state_ ^ static_cast<std::uint64_t>(id));
    for (std::int64_t i = 0; i < count; ++i) state_ = mixed(state_ ^ static_cast<std::uint64_t>(ids[i]));
    if (soft != nullptr) state_ = mixed(state_ ^ static_cast<std::uint64_t>(1000.0f * soft[count * 3 - 1]));
    positions_ = count;
    return project(request);
  }

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

 private:
  void add_row(const HeadRequest &request, std::size_t r, std::size_t rows, const std::vector<float> &z,
               HeadResult &result) const {
    const auto best = std::max_element(z.begin(), z.end()) - z.begin();
    double sum = 0, weighted = 0;
    for (const float value : z) sum += std::exp(static_cast<double>(value));
    const double log_z = std::log(sum);
    for (const float value : z) weighted += std::exp(value - log_z) * value;
    result.argmax.push_back(best);
    result.argmax_prob.push_back(static_cast<float>(std::exp(z[static_cast<std::size_t>(best)] - log_z)));
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
    if (request.logits != nullptr) std::copy(z.begin(), z.end(), request.logits + r * z.size());
  }

  std::int64_t vocabulary_;
  std::int64_t positions_ = 0;
  std::uint64_t state_ = 0;
  Ids prefix_;
};

constexpr std::int64_t kVocabulary = 50;

SamplerOptions options_of(const std::string &name, const std::string &overrides) {
  return sampler_options(name, members_of(Json::parse(R"({"mask_id": 49, "eos_token_id": [48]})", "config")),
                         members_of(Json::parse(overrides, "overrides")));
}

struct Seen {
  std::int64_t drafts = 0, committed = 0, done = 0;
  Ids answer;
};

// Runs the loop, checks what every event must hold and stops at event number `stop`, if that is not 0.
Seen run(Denoiser &denoiser, const SamplerOptions &options, std::uint64_t seed, Generation &generation,
         std::int64_t stop = 0) {
  Seen seen;
  generate(denoiser, {1, 2, 3}, options, seed,
           [&](const Event &event) {
             EK_CHECK(event.stats != nullptr);
             if (event.kind == EventKind::draft) {
               ++seen.drafts;
               EK_CHECK(event.stats->denoising_steps == seen.drafts);
               EK_CHECK(std::count(event.accepted, event.accepted + event.count, 1) > 0);
               EK_CHECK(std::equal(event.ids, event.ids + event.count, generation.draft.begin()));
             } else if (event.kind == EventKind::committed) {
               ++seen.committed;
               seen.answer.insert(seen.answer.end(), event.ids, event.ids + event.count);
             } else {
               ++seen.done;
             }
             for (std::int64_t i = 0; i < event.count; ++i) EK_CHECK(event.ids[i] >= 0 && event.ids[i] < kVocabulary);
             return seen.drafts + seen.committed != stop;
           },
           generation);
  return seen;
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

EK_TEST(sampling_events_and_state_agree_and_seeds_repeat) {
  for (const auto &one : kCases) {
    const SamplerOptions options = options_of(one[0], one[1]);
    HashDenoiser denoiser(kVocabulary);
    Generation first, second;
    const Seen seen = run(denoiser, options, 7, first);
    EK_CHECK(seen.done == 1 && seen.answer == first.answer && !first.answer.empty());
    EK_CHECK(first.stats.forwards == denoiser.passes);
    EK_CHECK(first.stats.finish_reason != FinishReason::cancelled);
    run(denoiser, options, 7, second);
    EK_CHECK(second.answer == first.answer && second.stats.denoising_steps == first.stats.denoising_steps);
    generate(denoiser, {1, 2, 3}, options, 7, {}, second);  // nobody listens
    EK_CHECK(second.answer == first.answer);
  }
}

EK_TEST(sampling_can_be_stopped_at_every_event) {
  for (const auto &one : kCases) {
    const SamplerOptions options = options_of(one[0], one[1]);
    HashDenoiser denoiser(kVocabulary);
    Generation full;
    const Seen all = run(denoiser, options, 3, full);
    for (std::int64_t stop = 1; stop <= all.drafts + all.committed; ++stop) {
      Generation generation;
      bool stopped = false;
      try {
        run(denoiser, options, 3, generation, stop);
      } catch (const Error &error) {
        stopped = error.status() == EK_STOPPED;
      }
      EK_CHECK(stopped);
      EK_CHECK(generation.stats.finish_reason == FinishReason::cancelled);
      EK_CHECK(generation.answer.size() <= full.answer.size());
      EK_CHECK(std::equal(generation.answer.begin(), generation.answer.end(), full.answer.begin()));
    }
  }
}

EK_TEST(sampling_refuses_what_cannot_be_run) {
  const auto status_of = [](const SamplerOptions &options, const Ids &prompt, bool broken) {
    HashDenoiser denoiser(kVocabulary);
    denoiser.broken = broken;
    Generation generation;
    try {
      generate(denoiser, prompt, options, 0, {}, generation);
    } catch (const Error &error) {
      return error.status();
    }
    return EK_OK;
  };
  LladaOptions llada;
  EK_CHECK(status_of(llada, {1}, false) == EK_INVALID_ARGUMENT);  // no mask token
  llada.mask_token_id = 49;
  llada.gen_length = llada.block_length = llada.steps = 4;
  EK_CHECK(status_of(llada, {1}, false) == EK_OK);
  EK_CHECK(status_of(llada, {}, false) == EK_OK);
  EK_CHECK(status_of(llada, {kVocabulary}, false) == EK_INVALID_ARGUMENT);
  EK_CHECK(status_of(llada, {1}, true) == EK_NOT_FINITE);
  llada.block_length = 0;
  EK_CHECK(status_of(llada, {1}, false) == EK_INVALID_ARGUMENT);
  DiffusionGemmaOptions gemma;
  gemma.canvas_length = 4;
  EK_CHECK(status_of(gemma, {}, false) == EK_INVALID_ARGUMENT);
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
                             const std::string &overrides) {
    const Json own = Json::parse(config, "config"), given = Json::parse(overrides, "overrides");
    GenerationWishes wishes;
    if (tokens != 0) wishes.max_new_tokens = tokens;
    wishes.options = members_of(given);
    const std::int64_t canvas = name == "diffusion_gemma" ? 16 : 0;
    const Lengths found = lengths(generation_options(name, members_of(own), canvas, wishes), 10);
    return Ids{found.new_tokens, found.prefix, found.canvas};
  };
  const std::string masked = R"({"mask_id": 49, "eos_token_id": 48, "max_new_tokens": 64, "block_length": 16})";
  EK_CHECK((lengths_of("llada", masked, 0, "{}") == Ids{64, 0, 74}));
  EK_CHECK((lengths_of("llada", masked, 65, "{}") == Ids{80, 0, 90}));
  EK_CHECK((lengths_of("llada", masked, 0, R"({"gen_length": 5, "stop_at_eos": null})") == Ids{5, 0, 15}));
  EK_CHECK((lengths_of("dream", masked, 65, R"({"gen_length": 7})") == Ids{65, 0, 75}));
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
  Generation generation;
  bool refused = false;
  try {
    run(denoiser, options_of("dream", R"({"temperature": 1, "max_new_tokens": 4, "steps": 2})"), 0, generation);
  } catch (const Error &error) {
    refused = error.status() == EK_INTERNAL;
  }
  EK_CHECK(refused);
}
