// The ek_sampler_ functions of edgekit.h.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "abi_generation.h"
#include "abi_guard.h"
#include "abi_segments.h"
#include "abi_session.h"
#include "edgekit.h"
#include "error.h"
#include "sampling/json_text.h"
#include "sampling/roles.h"
#include "session/sequence.h"

using namespace edgekit;

struct ek_sampler {
  std::unique_ptr<Sampler> sampler;
  std::optional<std::string> bundle;
  bool asked = false;  // what the sampler asks for was handed out
  std::atomic<bool> busy{false};  // a call on it is under way
  AskedSegments segments = {};    // of the pass that was handed out
};

namespace {

// A call on a sampler: one at a time.
class Held {
 public:
  // Throws Error (EK_INVALID_ARGUMENT, EK_INVALID_STATE).
  explicit Held(ek_sampler *sampler) : sampler_(sampler) {
    if (sampler == nullptr) fail(EK_INVALID_ARGUMENT, "the sampler is null");
    if (sampler->busy.exchange(true)) {
      fail(EK_INVALID_STATE, "the sampler is in a call of another thread; take turns, or copy it for each");
    }
  }
  ~Held() { sampler_->busy = false; }
  Held(const Held &) = delete;
  Held &operator=(const Held &) = delete;

  ek_sampler &operator*() const { return *sampler_; }

 private:
  ek_sampler *const sampler_;
};

ek_sampler *&place(ek_sampler **sampler) {
  if (sampler == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the sampler");
  *sampler = nullptr;
  return *sampler;
}

bool is_pass(AskKind kind) {
  return kind == AskKind::denoise || kind == AskKind::project || kind == AskKind::pass;
}

bool is_told(AskKind kind) { return kind == AskKind::draft || kind == AskKind::committed; }

void check_fact(const char *name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return;
  fail(EK_INVALID_ARGUMENT, "ek_sampler_model.", name, " is ", value, "; it must be ", least, "..", most);
}

void check_array(const char *name, const void *array, std::int64_t count) {
  check_fact(name, count, 0, kMostTokens);
  if (count > 0 && array == nullptr)
    fail(EK_INVALID_ARGUMENT, "ek_sampler_model.", name, " is ", count, ", the array null");
}

// What a caller says about its model.
struct Facts {
  SamplerModel model;
  Json section;
  ek_sampler_model given;

  GenerationFacts generation() const { return {section, given.canvas_length, given.max_positions}; }
  std::optional<std::string> bundle() const {
    return given.bundle == nullptr ? std::nullopt : std::optional<std::string>(given.bundle);
  }
};

void check_ids(const char *name, const std::vector<std::int64_t> &ids, std::int64_t vocabulary) {
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= vocabulary)
      fail(EK_INVALID_ARGUMENT, "ek_sampler_model.", name, " holds token ", id, "; the vocabulary has ", vocabulary,
           " tokens");
  }
}

Facts facts_of(const ek_sampler_model *model) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();  // products of two of them are sizes
  if (model == nullptr) fail(EK_INVALID_ARGUMENT, "the model is null");
  const ek_sampler_model given = read_struct<ek_sampler_model>(model, EK_SAMPLER_MODEL_INIT, "ek_sampler_model");
  check_fact("vocabulary", given.vocabulary, 1, kMost);
  check_fact("hidden_size", given.hidden_size, 0, kMost);
  check_fact("canvas_length", given.canvas_length, 0, kMost);
  check_fact("max_positions", given.max_positions, 0, std::numeric_limits<std::int64_t>::max());
  check_array("encoded_pieces", given.encoded, given.encoded_pieces);
  check_array("encoded_pieces", given.piece_lengths, given.encoded_pieces);
  check_array("uncached_count", given.uncached, given.uncached_count);
  if (given.sampler == nullptr)
    fail(EK_INVALID_ARGUMENT, "ek_sampler_model.sampler is null; give that section of the manifest");

  SamplerModel made;
  made.vocabulary = given.vocabulary;
  made.hidden_size = given.hidden_size;
  made.projects = given.projects != 0;
  check_fact("prefix_block", given.prefix_block, 0, kMost);
  made.prefix_block = std::max<std::int64_t>(1, given.prefix_block);
  made.shift_logits = given.shift_logits != 0;
  made.role_head = given.role_head != 0;
  const std::int64_t *next = given.encoded;
  for (std::int64_t i = 0; i < given.encoded_pieces; ++i) {
    check_fact("piece_lengths", given.piece_lengths[i], 1, kMostTokens - made.prefix_length);
    made.encoded.emplace_back(next, next + given.piece_lengths[i]);
    check_ids("encoded", made.encoded.back(), given.vocabulary);
    next += given.piece_lengths[i];
    made.prefix_length += given.piece_lengths[i];
  }
  if (given.uncached_count > 0) made.uncached.assign(given.uncached, given.uncached + given.uncached_count);
  check_ids("uncached", made.uncached, given.vocabulary);
  return {std::move(made), Json::parse(given.sampler, "ek_sampler_model.sampler"), given};
}

// What `own` asks; its segments live until the next one.
ek_ask plain(ek_sampler &own) {
  static_assert(static_cast<std::int32_t>(AskKind::crop) == EK_ASK_CROP, "kinds have the numbers of edgekit.h");
  const Ask &ask = own.sampler->ask();
  const auto array = [](const auto &values) { return values.empty() ? nullptr : values.data(); };
  ek_ask made{};
  made.kind = static_cast<std::int32_t>(ask.kind);
  made.ids = array(ask.ids);
  made.count = static_cast<std::int64_t>(ask.ids.size());
  made.soft = array(ask.soft);
  const bool one = is_pass(ask.kind) && ask.kind != AskKind::pass;
  made.request = request_for(ask.request, one ? ask.rows() : 0);
  made.logits = ask.request.logits;
  made.canvas_index = ask.canvas_index;
  made.step = ask.step;
  made.start = ask.start;
  made.accepted = array(ask.accepted);
  made.kept = array(ask.kept);
  made.kept_count = static_cast<std::int64_t>(ask.kept.size());
  made.prefix_length = ask.prefix_length;
  made.text = ask.text;
  own.segments.set(ask.segments);
  made.segments = own.segments.data();
  made.segment_count = own.segments.size();
  made.text_count = ask.text_count;
  return made;
}

// Takes a caller's answer to a request apart.
class Answer {
 public:
  Answer(const SamplerModel &model, const HeadRequest &request, std::int64_t rows, const ek_head_output &given)
      : model_(model), request_(request), given_(given), rows_(rows) {}

  HeadResult result() const {
    const HeadRequest &request = request_;
    HeadResult made;
    take("log_z", given_.log_z, 1, made.log_z);
    take("argmax", given_.argmax, 1, made.argmax);
    take("others", given_.others, 1, made.others);
    take("entropy", given_.entropy, 1, made.entropy);
    if (request.gumbel) {
      take("sample", given_.sample, 1, made.sample);
      take("sample_prob", given_.sample_prob, 1, made.sample_prob);
    }
    if (request.soft) take("soft", given_.soft, model_.hidden_size, made.soft);
    if (request.top_k > 0) {
      take("top_ids", given_.top_ids, request.top_k, made.top_ids);
      take("top_z", given_.top_z, request.top_k, made.top_z);
    }
    if (request.roles) take("roles", given_.roles, kRoles, made.roles);
    if (request.logits) take("logits", given_.logits, model_.vocabulary, made.logits);
    return made;
  }

 private:
  template <typename Number>
  void take(const char *name, const Number *from, std::int64_t width, std::vector<Number> &to) const {
    if (from == nullptr && rows_ * width > 0)
      fail(EK_INVALID_ARGUMENT, "ek_head_output.", name, " is null, but the pass was asked for it");
    to.assign(from, from + rows_ * width);
  }

  const SamplerModel &model_;
  const HeadRequest &request_;
  const ek_head_output &given_;
  std::int64_t rows_;
};

void check_tokens_of(const char *name, const std::vector<std::int64_t> &ids, std::int64_t vocabulary) {
  for (const std::int64_t token : ids) {
    if (token < 0 || token >= vocabulary)
      fail(EK_INVALID_ARGUMENT, "ek_head_output.", name, " holds token ", token, "; the vocabulary has ", vocabulary,
           " tokens");
  }
}

void check_known(const char *name, const std::vector<float> &values) {
  if (std::any_of(values.begin(), values.end(), [](float value) { return std::isnan(value); }))
    fail(EK_INVALID_ARGUMENT, "ek_head_output.", name, " holds NaN, though log_z is finite; fill all of it");
}

void check_finite(const char *name, const std::vector<float> &values) {
  check_known(name, values);
  if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }))
    fail(EK_INVALID_ARGUMENT, "ek_head_output.", name, " holds infinity, though log_z is finite");
}

void check_not_negative(const char *name, std::vector<float> &values) {
  for (float &value : values) {
    if (value < 0)
      fail(EK_INVALID_ARGUMENT, "ek_head_output.", name, " holds a negative number, which no exponential is");
    value = std::fabs(value);  // -0 would be a divisor of another sign
  }
}

// Throws Error (EK_INVALID_ARGUMENT) for an answer that no pass gives. Scores that are not finite have an error of their
// own, and leave no particular values elsewhere.
void check_answer(const SamplerModel &model, HeadResult &answer) {
  const auto finite = [](float z) { return std::isfinite(z); };
  if (!std::all_of(answer.log_z.begin(), answer.log_z.end(), finite)) return;
  check_tokens_of("argmax", answer.argmax, model.vocabulary);
  check_finite("others", answer.others);
  check_not_negative("others", answer.others);
  check_finite("entropy", answer.entropy);
  check_tokens_of("sample", answer.sample, model.vocabulary);
  check_known("sample_prob", answer.sample_prob);
  check_not_negative("sample_prob", answer.sample_prob);
  check_finite("soft", answer.soft);
  check_tokens_of("top_ids", answer.top_ids, model.vocabulary);
  check_known("top_z", answer.top_z);
  check_finite("roles", answer.roles);
  check_known("logits", answer.logits);
}

// Throws Error (EK_INVALID_ARGUMENT) unless a sequence can answer what a sampler of `model` asks.
void check_fits(const SamplerModel &model, const Sequence &sequence) {
  if (model.vocabulary == sequence.vocabulary() && (model.hidden_size == 0 || model.hidden_size == sequence.hidden_size()))
    return;
  fail(EK_INVALID_ARGUMENT, "the sampler is for a model of ", model.vocabulary, " tokens and a hidden size of ",
       model.hidden_size, ", the session's has ", sequence.vocabulary(), " and ", sequence.hidden_size());
}

// Whether a sequence still lacks what was asked for: a signal may come between asking and doing.
bool is_missing(const Ask &ask, const Sequence &sequence) {
  if (ask.kind == AskKind::forget) return sequence.prefix_length() != 0;
  return ask.kind == AskKind::encode && !ask.ids.empty() && ask.prefix_length == sequence.prefix_length() &&
         (ask.text == kAnyText || ask.text == sequence.text());
}

// Whether all of the text that is asked for is encoded: it is asked for again where nobody knew.
bool is_encoded(const Ask &ask, const Sequence &sequence) {
  if (ask.kind != AskKind::encode || ask.text == kAnyText) return false;
  return sequence.prefix_length() == ask.prefix_length + static_cast<std::int64_t>(ask.ids.size()) &&
         sequence.text() == text_number(ask.text, ask.ids.data(), ask.ids.size());
}

struct Settled {
  SamplerOptions options;
  std::uint64_t seed;
};

Settled settled(const ek_generate_options *options, const Facts &facts) {
  const ek_generate_options given =
      read_struct<ek_generate_options>(options, EK_GENERATE_OPTIONS_INIT, "ek_generate_options");
  SamplerOptions chosen = options_of(given, facts.generation());
  check_model(chosen, facts.model);
  return {std::move(chosen), given.seed};
}

std::string lengths_text(const SamplerOptions &options, const Facts &facts, std::int64_t prompt) {
  const Lengths own = checked_lengths(options, facts.generation(), facts.model, prompt);
  std::string text = "{";
  for (const auto &[name, value] : {std::pair{"new_tokens", own.new_tokens}, std::pair{"prefix", own.prefix},
                                    std::pair{"canvas", own.canvas}, std::pair{"canvases", own.canvases},
                                    std::pair{"steps", own.steps}, std::pair{"segments", own.segments}})
    text += '"' + std::string(name) + "\": " + std::to_string(value) + ", ";
  return text + "\"text\": " + json_text(new_tokens_text(options, prompt)) + "}";
}

std::uint64_t &place(std::uint64_t *size, const char *what) {
  if (size == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the size of ", what);
  return *size;
}

ek_sampler *handle(std::unique_ptr<Sampler> sampler, const Facts &facts) {
  return new ek_sampler{std::move(sampler), facts.bundle()};
}

}  // namespace

ek_status ek_sampler_create(const ek_sampler_model *model, const int64_t *prompt, int64_t count,
                            const ek_generate_options *options, ek_sampler **sampler) noexcept {
  return guarded([&] {
    ek_sampler *&out = place(sampler);
    const Facts facts = facts_of(model);
    const Settled chosen = settled(options, facts);
    const std::vector<std::int64_t> ids = prompt_of(prompt, count);
    checked_lengths(chosen.options, facts.generation(), facts.model, count);
    out = handle(edgekit::sampler(chosen.options, facts.model, ids, chosen.seed), facts);
  });
}

void ek_sampler_close(ek_sampler *sampler) noexcept { delete sampler; }

ek_status ek_sampler_get_options(const ek_sampler_model *model, const ek_generate_options *options, int64_t prompt,
                                 char *buffer, uint64_t capacity, uint64_t *size) noexcept {
  return guarded([&] {
    std::uint64_t &bytes = place(size, "the list of options");
    const Facts facts = facts_of(model);
    SamplerOptions chosen = settled(options, facts).options;
    if (prompt < -1 || prompt > kMostTokens)
      fail(EK_INVALID_ARGUMENT, "a prompt of ", prompt, " tokens; it must have 0..", kMostTokens, ", or -1 for none");
    std::string text = "{\"family\": " + json_text(facts.section.at("name").string()) +
                       ", \"draws\": " + (draws(chosen) ? "true" : "false") +
                       ", \"options\": " + description_of(fields(chosen), facts.model.vocabulary) + ", \"lengths\": ";
    text += prompt < 0 ? "null" : lengths_text(chosen, facts, prompt);
    fill(text + "}", "the list of options", buffer, capacity, bytes);
  });
}

ek_status ek_sampler_get_lengths(ek_sampler *sampler, ek_sampler_lengths *lengths) noexcept {
  return guarded([&] {
    const Held held(sampler);
    const Lengths &own = (*held).sampler->lengths();
    ek_sampler_lengths made{};
    made.new_tokens = own.new_tokens;
    made.prefix = own.prefix;
    made.canvas = own.canvas;
    made.canvases = own.canvases;
    made.steps = own.steps;
    made.segments = own.segments;
    write_struct(lengths, made, "ek_sampler_lengths");
  });
}

ek_status ek_sampler_get_statistics(ek_sampler *sampler, ek_generation_statistics *statistics) noexcept {
  return guarded([&] {
    const Held held(sampler);
    const Sampler &own = *(*held).sampler;
    const bool done = own.ask().kind == AskKind::done;
    const std::int32_t reason = done ? finish_reason(own.stats().finish_reason) : EK_FINISH_NONE;
    write_struct(statistics, statistics_of(own.stats(), reason), "ek_generation_statistics");
  });
}

ek_status ek_sampler_next(ek_sampler *sampler, ek_ask *ask) noexcept {
  return guarded([&] {
    const Held held(sampler);
    ek_sampler &own = *held;
    if (own.asked && is_pass(own.sampler->ask().kind))
      fail(EK_INVALID_STATE, "the pass that was asked for has no answer yet; give that first, or tell that there is none");
    write_struct(ask, ek_ask{}, "ek_ask");  // the place is looked at before anything changes
    if (own.asked) own.sampler->next();
    own.asked = true;
    write_struct(ask, plain(own), "ek_ask");
  });
}

ek_status ek_sampler_answer(ek_sampler *sampler, const ek_head_output *output) noexcept {
  return guarded([&] {
    const Held held(sampler);
    ek_sampler &own = *held;
    if (output == nullptr) {
      own.asked = own.asked && is_told(own.sampler->ask().kind);
      return;
    }
    if (!own.asked || !is_pass(own.sampler->ask().kind))
      fail(EK_INVALID_STATE, "no pass waits for an answer: the sampler was restored, or driven by somebody else, since it asked for one; ask what to do next");
    const Ask &ask = own.sampler->ask();
    if (ask.kind == AskKind::pass)
      fail(EK_INVALID_ARGUMENT, "the pass has ", ask.segments.size(), " segments; answer it by ek_sampler_answer_pass");
    const ek_head_output given = read_struct<ek_head_output>(output, EK_HEAD_OUTPUT_INIT, "ek_head_output");
    HeadResult answer = Answer(own.sampler->model(), ask.request, ask.rows(), given).result();
    check_answer(own.sampler->model(), answer);
    own.sampler->next(std::move(answer));
    own.sampler->set_pass(0);
    own.asked = false;
  });
}

ek_status ek_sampler_answer_pass(ek_sampler *sampler, const ek_head_output *outputs, int64_t count) noexcept {
  return guarded([&] {
    const Held held(sampler);
    ek_sampler &own = *held;
    const Ask &ask = own.sampler->ask();
    if (!own.asked || ask.kind != AskKind::pass)
      fail(EK_INVALID_STATE, "no pass of segments waits for an answer; ask what to do next");
    const auto asked = std::count_if(ask.segments.begin(), ask.segments.end(),
                                     [](const AskSegment &segment) { return segment.request.has_value(); });
    if (count != asked || outputs == nullptr)
      fail(EK_INVALID_ARGUMENT, count, " outputs; the pass has ", asked, " segments with a request");
    const std::uint32_t size = outputs->struct_size;
    std::vector<HeadResult> answers;
    for (const AskSegment &segment : ask.segments) {
      if (!segment.request) continue;
      // Structs of the caller's size, one behind the other.
      const auto *at = reinterpret_cast<const unsigned char *>(outputs) + answers.size() * size;
      const auto *output = reinterpret_cast<const ek_head_output *>(at);
      if (output->struct_size != size) fail(EK_INVALID_ARGUMENT, "outputs of a pass have different struct_size");
      const ek_head_output given = read_struct<ek_head_output>(output, EK_HEAD_OUTPUT_INIT, "ek_head_output");
      answers.push_back(Answer(own.sampler->model(), *segment.request, segment.rows(), given).result());
      check_answer(own.sampler->model(), answers.back());
    }
    own.sampler->next(std::move(answers));
    own.sampler->set_pass(0);
    own.asked = false;
  });
}

ek_status ek_session_run_sampler(ek_session *session, ek_sampler *sampler, ek_sequence *sequence,
                                 ek_ask *ask) noexcept {
  return guarded([&] {
    const Entry entry(session);
    const Held held(sampler);
    ek_sampler &own = *held;
    Sequence &text = sequence_of(session, sequence);
    check_fits(own.sampler->model(), text);
    write_struct(ask, ek_ask{}, "ek_ask");  // the place is looked at before anything changes
    const Ask &waiting = own.sampler->ask();
    const bool done = own.asked ? !is_pass(waiting.kind) && !is_missing(waiting, text) : is_encoded(waiting, text);
    if (done) own.sampler->next();
    own.asked = false;
    const auto check = [&](HeadResult &found) { check_answer(own.sampler->model(), found); };
    while (answer(*own.sampler, text, check)) {
    }
    own.asked = true;
    write_struct(ask, plain(own), "ek_ask");
  });
}

ek_status ek_text_number(uint64_t text, const int64_t *ids, int64_t count, uint64_t *number) noexcept {
  return guarded([&] {
    if (number == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the number");
    if (count < 0 || (count > 0 && ids == nullptr)) fail(EK_INVALID_ARGUMENT, count, " token ids, the array null");
    *number = text_number(text, ids, static_cast<std::size_t>(count));
  });
}

ek_status ek_sampler_hurry(ek_sampler *sampler, int64_t passes) noexcept {
  return guarded([&] {
    const Held held(sampler);
    (*held).sampler->hurry(passes);
  });
}

ek_status ek_sampler_reseed(ek_sampler *sampler, uint64_t seed) noexcept {
  return guarded([&] {
    const Held held(sampler);
    ek_sampler &own = *held;
    const bool pass = is_pass(own.sampler->ask().kind);
    own.sampler->reseed(seed);
    if (pass) own.asked = false;
  });
}

ek_status ek_sampler_copy(ek_sampler *sampler, ek_sampler **copy) noexcept {
  return guarded([&] {
    ek_sampler *&out = place(copy);
    const Held held(sampler);
    const ek_sampler &own = *held;
    out = new ek_sampler{own.sampler->copy(), own.bundle, own.asked && is_told(own.sampler->ask().kind)};
  });
}

ek_status ek_sampler_restore(ek_sampler *sampler) noexcept {
  return guarded([&] {
    const Held held(sampler);
    ek_sampler &own = *held;
    if (own.asked && is_told(own.sampler->ask().kind)) own.sampler->next();
    own.sampler->restore();
    own.asked = false;
  });
}

ek_status ek_sampler_save(ek_sampler *sampler, void *buffer, uint64_t capacity, uint64_t *size) noexcept {
  return guarded([&] {
    const Held held(sampler);
    const ek_sampler &own = *held;
    std::uint64_t &bytes = place(size, "the state");
    if (!own.bundle)
      fail(EK_INVALID_STATE, "the sampler does not know its bundle; set ek_sampler_model.bundle when it is created");
    fill(own.sampler->save(*own.bundle), "the state", buffer, capacity, bytes);
  });
}

ek_status ek_sampler_load(const ek_sampler_model *model, const void *state, uint64_t size,
                          ek_sampler **sampler) noexcept {
  return guarded([&] {
    ek_sampler *&out = place(sampler);
    const Facts facts = facts_of(model);
    if (state == nullptr) fail(EK_INVALID_ARGUMENT, "the state is null");
    if (facts.given.bundle == nullptr)
      fail(EK_INVALID_ARGUMENT, "ek_sampler_model.bundle is null; give what the state is bound to");
    const std::string_view bytes(static_cast<const char *>(state), static_cast<std::size_t>(size));
    out = handle(load_sampler(bytes, facts.model, facts.given.bundle), facts);
  });
}
