#include "abi_generation.h"

#include <deque>
#include <string>
#include <utility>
#include <variant>

#include "error.h"
#include "sampling/json_text.h"

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
    fail(EK_INVALID_ARGUMENT, "the sampler options are ", shown(options), "; give a JSON object of them");
  } catch (const Error &error) {
    if (error.status() != EK_MALFORMED_FILE) throw;
    // The reader's advice, behind the last semicolon, is about files.
    const std::string message = error.what();
    fail(EK_INVALID_ARGUMENT, message.substr(0, message.rfind(';')), "; give a JSON object of them");
  }
}

}  // namespace

SamplerOptions options_of(const ek_generate_options &given, const GenerationFacts &facts) {
  if (given.reserved != 0) {
    fail(EK_INVALID_ARGUMENT, "ek_generate_options.reserved is ", given.reserved, "; set it to 0");
  }
  std::deque<Json> said;  // does not move them as it grows
  OptionMembers wishes;
  if (given.options != nullptr) wishes = members_of(said.emplace_back(parse_options(given.options)));
  for (const auto &[name, value] : {std::pair{"max_new_tokens", given.max_new_tokens}, std::pair{"steps", given.steps}}) {
    if (value != 0) wishes.emplace_back(name, &said.emplace_back(Json::parse(std::to_string(value), name)));
  }
  const std::string &name = facts.sampler.at("name").string();
  const OptionMembers config = members_of(facts.sampler.at("config"));
  SamplerOptions chosen = sampler_options(name, config, wishes, facts.canvas_length);
  check_used(chosen, name, config, wishes, facts.canvas_length);
  return chosen;
}

std::vector<std::int64_t> prompt_of(const std::int64_t *ids, std::int64_t count) {
  if (count < 0 || count > kMostTokens) {
    fail(EK_INVALID_ARGUMENT, "a prompt of ", count, " tokens; it must have 0..", kMostTokens);
  }
  if (count > 0 && ids == nullptr) fail(EK_INVALID_ARGUMENT, "no token ids are given");
  return {ids, ids + count};
}

Lengths checked_lengths(const SamplerOptions &options, const GenerationFacts &facts, const SamplerModel &model,
                        std::int64_t prompt) {
  const auto *gemma = std::get_if<DiffusionGemmaOptions>(&options);
  const auto *block = std::get_if<BlockOptions>(&options);
  if ((gemma != nullptr && gemma->continue_prefix) || (block != nullptr && block->continue_prefix)) {
    prompt += model.prefix_length + static_cast<std::int64_t>(model.uncached.size());
  }
  const Lengths needed = lengths(options, prompt);
  const std::int64_t limit = facts.max_positions;
  if (limit != 0 && prompt + needed.new_tokens > limit) {
    fail(EK_PROMPT_TOO_LONG, prompt, " prompt tokens and ", new_tokens_text(options, prompt), " pass the model's ",
         limit, " positions; shorten the prompt or ask for fewer tokens");
  }
  return needed;
}

ek_head_request request_for(const HeadRequest &request, std::int64_t rows) {
  ek_head_request made = EK_HEAD_REQUEST_INIT;
  made.temperature = request.temperature;
  made.rows = request.all_rows ? nullptr : request.rows.data();
  made.row_count = rows;
  made.soft = request.soft;
  made.roles = request.roles;
  made.top_k = request.top_k;
  if (request.gumbel) {
    made.gumbel = 1;
    made.gumbel_scale = request.gumbel->scale;
    made.seed = request.gumbel->seed;
    made.draw = request.gumbel->draw;
  }
  return made;
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
  made.rows = stats.rows;
  return made;
}

}  // namespace edgekit
