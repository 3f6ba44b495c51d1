// ek_generate and ek_model_generate of edgekit.h: what a caller gives is checked and settled here, a sampler runs it.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "abi_caller_model.h"
#include "abi_guard.h"
#include "abi_session.h"
#include "edgekit.h"
#include "error.h"
#include "json.h"
#include "sampling/generate.h"
#include "sampling/generation_options.h"
#include "sampling/option_visitor.h"
#include "sampling/python_text.h"
#include "session/model.h"

namespace edgekit {
namespace {

// The model of a generation: its passes, and what decides about options and lengths.
struct GenerationModel {
  Denoiser &denoiser;
  const Json &sampler;                                 // the manifest's section
  std::int64_t canvas_length, max_positions;           // 0: any, unknown
  std::function<void(const Lengths &)> check_lengths;  // throws Error for more than it has memory for
  std::function<void()> idle;                          // the generation is over
};

// Throws Error (EK_MALFORMED_FILE) where a number is too large for a double.
void check_numbers(const Json &value) {
  if (value.kind() == Json::Kind::number) value.number();
  if (value.kind() == Json::Kind::array) {
    for (const Json &item : value.array()) check_numbers(item);
  }
  if (value.kind() == Json::Kind::object) {
    for (const auto &member : value.object()) check_numbers(member.second);
  }
}

// The caller's sampler options. Throws Error (EK_INVALID_ARGUMENT).
Json parse_options(const char *text) {
  try {
    Json options = Json::parse(text, "the sampler options");
    check_numbers(options);
    if (options.kind() == Json::Kind::object) return options;
    fail(EK_INVALID_ARGUMENT, "the sampler options are ", python_repr(options), "; give a JSON object of them");
  } catch (const Error &error) {
    if (error.status() != EK_MALFORMED_FILE) throw;
    // The reader's advice, behind the last semicolon, is about files.
    const std::string message = error.what();
    fail(EK_INVALID_ARGUMENT, message.substr(0, message.rfind(';')), "; give a JSON object of them");
  }
}

std::optional<std::int64_t> unless_zero(std::int64_t value) {
  return value == 0 ? std::nullopt : std::optional<std::int64_t>(value);
}

SamplerOptions options_of(const ek_generate_options &given, const GenerationModel &model) {
  if (given.reserved != 0) {
    fail(EK_INVALID_ARGUMENT, "ek_generate_options.reserved is ", given.reserved, "; set it to 0");
  }
  std::optional<Json> options;
  if (given.options != nullptr) options = parse_options(given.options);
  GenerationWishes wishes;
  wishes.max_new_tokens = unless_zero(given.max_new_tokens);
  wishes.steps = unless_zero(given.steps);
  if (options) wishes.options = members_of(*options);
  return generation_options(model.sampler.at("name").string(), members_of(model.sampler.at("config")),
                            model.canvas_length, wishes);
}

// The prompt as the loops take it. Throws Error (EK_INVALID_ARGUMENT).
std::vector<std::int64_t> prompt_of(const std::int64_t *ids, std::int64_t count) {
  if (count < 0 || count > kMostTokens) {
    fail(EK_INVALID_ARGUMENT, "a prompt of ", count, " tokens; it must have 0..", kMostTokens);
  }
  if (count > 0 && ids == nullptr) fail(EK_INVALID_ARGUMENT, "no token ids are given");
  return {ids, ids + count};
}

// Throws Error when the model or its memory is too small for the generation.
void check_lengths(const GenerationModel &model, const SamplerOptions &options, std::int64_t prompt) {
  const auto *gemma = std::get_if<DiffusionGemmaOptions>(&options);
  if (gemma != nullptr && gemma->continue_prefix) {
    prompt += model.denoiser.prefix_length() + static_cast<std::int64_t>(model.denoiser.uncached().size());
  }
  const Lengths needed = lengths(options, prompt);
  const std::int64_t limit = model.max_positions;
  if (limit != 0 && prompt + needed.new_tokens > limit) {
    fail(EK_INVALID_ARGUMENT, prompt, " prompt tokens and ", new_tokens_text(options, prompt), " pass the model's ",
         limit, " positions; shorten the prompt or ask for fewer tokens");
  }
  model.check_lengths(needed);
}

std::int32_t finish_reason(FinishReason reason) {
  switch (reason) {
    case FinishReason::eos:
      return EK_FINISH_EOS;
    case FinishReason::length:
      return EK_FINISH_LENGTH;
    case FinishReason::cancelled:
      return EK_FINISH_STOPPED;
  }
  return EK_FINISH_NONE;
}

ek_generation_statistics statistics_of(const Stats &stats, std::int32_t reason) {
  ek_generation_statistics made{};
  made.struct_size = sizeof made;
  made.finish_reason = reason;
  made.denoising_steps = stats.denoising_steps;
  made.forwards = stats.forwards;
  made.projections = stats.projections;
  made.prefills = stats.prefills;
  made.committed_tokens = stats.committed_tokens;
  made.canvases = stats.canvases;
  return made;
}

EventCallback event_callback(ek_event_callback callback, void *user_data) {
  if (callback == nullptr) return {};
  return [=](const Ask &event, const Stats &stats) {
    const bool done = event.kind == AskKind::done, draft = event.kind == AskKind::draft;
    const ek_generation_statistics statistics =
        statistics_of(stats, done ? finish_reason(stats.finish_reason) : EK_FINISH_NONE);
    ek_event made{};
    made.struct_size = sizeof made;
    made.kind = done ? EK_EVENT_DONE : draft ? EK_EVENT_DRAFT : EK_EVENT_COMMITTED;
    made.canvas_index = event.canvas_index;
    made.step = event.step;
    made.start = event.start;
    made.ids = done ? nullptr : event.ids.data();
    made.count = static_cast<std::int64_t>(event.ids.size());
    made.accepted = draft ? event.accepted.data() : nullptr;
    made.statistics = &statistics;
    return callback(&made, user_data) == 0;
  };
}

// What a caller gives to a generation over any model.
struct Call {
  const std::int64_t *prompt;
  std::int64_t count;
  const ek_generate_options *options;
  ek_event_callback callback;
  void *user_data;
  ek_generation_statistics *statistics;

  void report(const Stats &stats, std::int32_t reason) const {
    if (statistics != nullptr) write_struct(statistics, statistics_of(stats, reason), "ek_generation_statistics");
  }
};

void run(const Call &call, const GenerationModel &model) {
  std::unique_ptr<Sampler> own;
  try {
    call.report(Stats(), EK_FINISH_NONE);
    const ek_generate_options given =
        read_struct<ek_generate_options>(call.options, EK_GENERATE_OPTIONS_INIT, "ek_generate_options");
    const SamplerOptions chosen = options_of(given, model);
    const std::vector<std::int64_t> ids = prompt_of(call.prompt, call.count);
    check_lengths(model, chosen, call.count);
    own = sampler(chosen, model_of(model.denoiser), ids, given.seed);
    run(*own, model.denoiser, event_callback(call.callback, call.user_data));
  } catch (...) {
    model.idle();
    const Stats reached = own ? own->stats() : Stats();
    call.report(reached, reached.finish_reason == FinishReason::cancelled ? EK_FINISH_STOPPED : EK_FINISH_NONE);
    throw;
  }
  model.idle();
  call.report(own->stats(), finish_reason(own->stats().finish_reason));
}

}  // namespace
}  // namespace edgekit

using namespace edgekit;

ek_status ek_generate(ek_session *session, const int64_t *prompt, int64_t count, const ek_generate_options *options,
                      ek_event_callback callback, void *user_data, ek_generation_statistics *statistics) noexcept {
  return guarded([&] {
    Session &own = required(session).session;
    run({prompt, count, options, callback, user_data, statistics},
        {own, own.sampler(), own.model().canvas_length, own.model().max_positions,
         [&](const Lengths &needed) { own.check_lengths(needed.canvas, needed.prefix); }, [&] { own.idle(); }});
  });
}

ek_status ek_model_generate(const ek_model *model, const int64_t *prompt, int64_t count,
                            const ek_generate_options *options, ek_event_callback callback, void *user_data,
                            ek_generation_statistics *statistics) noexcept {
  return guarded([&] {
    const Call call{prompt, count, options, callback, user_data, statistics};
    call.report(Stats(), EK_FINISH_NONE);
    if (model == nullptr) fail(EK_INVALID_ARGUMENT, "the model is null");
    const ek_model own = read_struct<ek_model>(model, EK_MODEL_INIT, "ek_model");
    if (own.sampler == nullptr) {
      fail(EK_INVALID_ARGUMENT, "ek_model.sampler is null; give that section of the manifest");
    }
    CallerModel denoiser(own);
    const Json sampler = Json::parse(own.sampler, "ek_model.sampler");
    run(call, {denoiser, sampler, own.canvas_length, own.max_positions, [](const Lengths &) {}, [] {}});
  });
}
