#include "sampling/generation_options.h"

#include <algorithm>
#include <deque>
#include <initializer_list>

#include "json.h"
#include "sampling/option_visitor.h"

namespace edgekit {
namespace {

// Tokens asked for when neither the caller nor the checkpoint says how many.
constexpr std::int64_t kDefaultNewTokens = 128;
// Block length of semi-autoregressive decoding where the checkpoint names none.
constexpr std::int64_t kDefaultBlock = 32;
constexpr IntegerBounds kLength{1, kMostTokens};

using Names = std::initializer_list<const char *>;

// The two lists that options are read from; rules move what they decide into the overrides.
class Sources {
 public:
  Sources(const OptionMembers &config, const OptionMembers &overrides) : config_(config), overrides_(overrides) {}

  SamplerOptions options(const std::string &name) const { return sampler_options(name, config_, overrides_); }

  // The value of the first of `names` that the overrides set, else the config; null where neither sets any. A null
  // in either means "not set".
  const Json *find(Names names) const { return lookup(names).value; }

  // The length that find() gives, if any.
  std::optional<std::int64_t> length(Names names) const {
    const Found found = lookup(names);
    if (found.value == nullptr) return std::nullopt;
    return read_integer(found.name, *found.value, kLength);
  }

  // Lets the option be `value`, in JSON, whatever was said under its name and aliases, of which it has the first.
  void decide(Names names, const std::string &value) {
    for (const char *name : names) {
      remove(config_, name);
      remove(overrides_, name);
    }
    decided_.push_back(Json::parse(value, "options"));
    overrides_.emplace_back(*names.begin(), &decided_.back());
  }
  void decide(Names names, std::int64_t value) { decide(names, std::to_string(value)); }

  void set_canvas_length(std::int64_t value) {
    remove(config_, "canvas_length");
    decided_.push_back(Json::parse(std::to_string(value), "options"));
    config_.emplace_back("canvas_length", &decided_.back());
  }

 private:
  struct Found {
    const char *name = nullptr;
    const Json *value = nullptr;
  };

  Found lookup(Names names) const {
    for (const OptionMembers *source : {&overrides_, &config_}) {
      for (const char *name : names) {
        for (const auto &[key, value] : *source) {
          if (key == name && !value->is_null()) return {name, value};
        }
      }
    }
    return {};
  }

  static void remove(OptionMembers &members, const char *name) {
    members.erase(std::remove_if(members.begin(), members.end(), [&](const auto &m) { return m.first == name; }),
                  members.end());
  }

  OptionMembers config_, overrides_;
  std::deque<Json> decided_;  // does not move them as it grows
};

std::optional<std::int64_t> checked(const char *name, std::optional<std::int64_t> wish) {
  if (wish) check_integer(name, *wish, kLength);
  return wish;
}

std::int64_t rounded_up(std::int64_t value, std::int64_t of) { return (value + of - 1) / of * of; }

// The wish, else what the sources say, else `otherwise`.
std::int64_t length_of(std::optional<std::int64_t> wish, const Sources &sources, Names names, std::int64_t otherwise) {
  return wish ? *wish : sources.length(names).value_or(otherwise);
}

void stop_at_eos(Sources &sources) {
  const Json *ends = sources.find({"eos_token_ids", "eos_token_id"});
  const bool none = ends == nullptr || (ends->kind() == Json::Kind::array && ends->array().empty());
  if (!none && sources.find({"stop_at_eos"}) == nullptr) sources.decide({"stop_at_eos"}, "true");
}

void settle_diffusion_gemma(Sources &sources, std::int64_t canvas_length, const GenerationWishes &wishes) {
  if (canvas_length != 0) sources.set_canvas_length(canvas_length);
  const auto new_tokens = checked("max_new_tokens", wishes.max_new_tokens), steps = checked("steps", wishes.steps);
  if (new_tokens) sources.decide({"max_new_tokens"}, *new_tokens);
  sources.length({"max_new_tokens"});
  if (steps) sources.decide({"max_denoising_steps"}, *steps);
  sources.length({"max_denoising_steps"});
  sources.length({"canvas_length"});
  sources.length({"max_length"});
}

void settle_llada(Sources &sources, const GenerationWishes &wishes) {
  const Names names = {"gen_length", "max_new_tokens"};
  const auto wanted = checked("max_new_tokens", wishes.max_new_tokens);
  const std::int64_t tokens = length_of(wanted, sources, names, kDefaultNewTokens);
  const std::int64_t block = std::min(sources.length({"block_length"}).value_or(kDefaultBlock), tokens);
  const std::int64_t length = rounded_up(tokens, block);
  const std::int64_t steps = length_of(checked("steps", wishes.steps), sources, {"steps"}, length);
  sources.decide(names, length);
  sources.decide({"block_length"}, block);
  sources.decide({"steps"}, rounded_up(steps, length / block));
  stop_at_eos(sources);
}

void settle_dream(Sources &sources, const GenerationWishes &wishes) {
  const Names names = {"max_new_tokens", "gen_length"};
  const auto wanted = checked("max_new_tokens", wishes.max_new_tokens);
  const std::int64_t length = length_of(wanted, sources, names, kDefaultNewTokens);
  const std::int64_t steps = length_of(checked("steps", wishes.steps), sources, {"steps"}, length);
  sources.decide(names, length);
  sources.decide({"steps"}, steps);
  if (sources.find({"alg"}) == nullptr) sources.decide({"alg"}, "\"entropy\"");
  stop_at_eos(sources);
}

}  // namespace

SamplerOptions generation_options(const std::string &name, const OptionMembers &config, std::int64_t canvas_length,
                                  const GenerationWishes &wishes) {
  Sources sources(config, wishes.options);
  if (name == "diffusion_gemma") settle_diffusion_gemma(sources, canvas_length, wishes);
  if (name == "llada") settle_llada(sources, wishes);
  if (name == "dream") settle_dream(sources, wishes);
  return sources.options(name);
}

}  // namespace edgekit
