// ek_generate of edgekit.h: what a caller gives is checked and settled here, the loops run it.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "abi_guard.h"
#include "abi_session.h"
#include "edgekit.h"
#include "error.h"
#include "json.h"
#include "sampling/events.h"
#include "sampling/generate.h"
#include "sampling/generation_options.h"
#include "sampling/option_visitor.h"
#include "sampling/python_text.h"
#include "session/model.h"

namespace edgekit {
namespace {

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

SamplerOptions options_of(const ek_generate_options &given, const Session &session) {
  if (given.reserved != 0) {
    fail(EK_INVALID_ARGUMENT, "ek_generate_options.reserved is ", given.reserved, "; set it to 0");
  }
  std::optional<Json> options;
  if (given.options != nullptr) options = parse_options(given.options);
  GenerationWishes wishes;
  wishes.max_new_tokens = unless_zero(given.max_new_tokens);
  wishes.steps = unless_zero(given.steps);
  if (options) wishes.options = members_of(*options);
  const Json &sampler = session.sampler();
  return generation_options(sampler.at("name").string(), members_of(sampler.at("config")),
                            session.model().canvas_length, wishes);
}

// The prompt as the loops take it. Throws Error (EK_INVALID_ARGUMENT).
std::vector<std::int64_t> prompt_of(const std::int64_t *ids, std::int64_t count) {
  if (count < 0 || count > kMostTokens) {
    fail(EK_INVALID_ARGUMENT, "a prompt of ", count, " tokens; it must have 0..", kMostTokens);
  }
  if (count > 0 && ids == nullptr) fail(EK_INVALID_ARGUMENT, "no token ids are given");
  return {ids, ids + count};
}

// Throws Error when the model or the session's budget is too small for the generation.
void check_lengths(const Session &session, const SamplerOptions &options, std::int64_t prompt) {
  const auto *gemma = std::get_if<DiffusionGemmaOptions>(&options);
  if (gemma != nullptr && gemma->continue_prefix) prompt += session.prefix_length();
  const Lengths needed = lengths(options, prompt);
  const std::int64_t limit = session.model().max_positions;
  if (limit != 0 && prompt + needed.new_tokens > limit) {
    fail(EK_INVALID_ARGUMENT, prompt, " prompt tokens and ", needed.new_tokens, " new ones pass the model's ", limit,
         " positions; shorten the prompt or ask for fewer tokens");
  }
  session.check_lengths(needed.canvas, needed.prefix);
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
  return [=](const Event &event) {
    const bool done = event.kind == EventKind::done;
    const ek_generation_statistics statistics =
        statistics_of(*event.stats, done ? finish_reason(event.stats->finish_reason) : EK_FINISH_NONE);
    ek_event made{};
    made.struct_size = sizeof made;
    made.kind = done ? EK_EVENT_DONE : event.kind == EventKind::draft ? EK_EVENT_DRAFT : EK_EVENT_COMMITTED;
    made.canvas_index = event.canvas_index;
    made.step = event.step;
    made.start = event.start;
    made.ids = event.ids;
    made.count = event.count;
    made.accepted = event.accepted;
    made.statistics = &statistics;
    return callback(&made, user_data) == 0;
  };
}

}  // namespace
}  // namespace edgekit

using namespace edgekit;

ek_status ek_generate(ek_session *session, const int64_t *prompt, int64_t count, const ek_generate_options *options,
                      ek_event_callback callback, void *user_data, ek_generation_statistics *statistics) noexcept {
  return guarded([&] {
    const auto report = [&](const Stats &stats, std::int32_t reason) {
      if (statistics != nullptr) write_struct(statistics, statistics_of(stats, reason), "ek_generation_statistics");
    };
    Session &own = required(session).session;
    Generation generation;
    try {
      report(Stats(), EK_FINISH_NONE);
      const ek_generate_options given =
          read_struct<ek_generate_options>(options, EK_GENERATE_OPTIONS_INIT, "ek_generate_options");
      const SamplerOptions chosen = options_of(given, own);
      const std::vector<std::int64_t> ids = prompt_of(prompt, count);
      check_lengths(own, chosen, count);
      generate(own, ids, chosen, given.seed, event_callback(callback, user_data), generation);
    } catch (...) {
      own.idle();
      const bool stopped = generation.stats.finish_reason == FinishReason::cancelled;
      report(generation.stats, stopped ? EK_FINISH_STOPPED : EK_FINISH_NONE);
      throw;
    }
    own.idle();
    report(generation.stats, finish_reason(generation.stats.finish_reason));
  });
}
