#include "sampling/options.h"

#include <algorithm>

#include "error.h"
#include "sampling/json_text.h"

namespace edgekit {
namespace {

// The next multiple of `of`.
std::int64_t rounded_up(std::int64_t value, std::int64_t of) { return value / of * of + (value % of != 0 ? of : 0); }

void need_eos(const char *name, bool value, const std::vector<std::int64_t> &eos_token_ids) {
  if (value && eos_token_ids.empty())
    fail(EK_INVALID_ARGUMENT, name, " needs eos_token_ids; set the end tokens of this model");
}

OptionField count(const char *name, OptionValue value, const char *help) {
  return OptionField(name, value, help).at_least(1).at_most(kMostTokens);
}

// Scores are divided by temperatures, or noise is multiplied with them, as float32: what is nearer to 0 or larger makes
// infinities of them.
constexpr double kLeastTemperature = 1e-6, kMostTemperature = 1e6;

OptionField temperature_of(const char *name, OptionValue value, const char *help) {
  return OptionField(name, value, help).at_least(0).at_most(kMostTemperature);
}

void check_temperature(const char *name, double value) {
  if (value > 0 && value < kLeastTemperature)
    fail(EK_INVALID_ARGUMENT, name, " is ", json_text(value), "; use 0, or a number of at least ",
         json_text(kLeastTemperature));
}

OptionField mask_token(std::int64_t &value) {
  return OptionField("mask_token_id", &value, "Token that stands for an open position.")
      .token()
      .also({"mask_id"})
      .needed();
}

OptionField eos_tokens(std::vector<std::int64_t> &value) {
  return OptionField("eos_token_ids", &value, "Tokens that end the answer.").token().also({"eos_token_id"});
}

OptionField stop_at_eos(bool &value) {
  return {"stop_at_eos", &value, "End at the first end token once nothing before it is open."};
}

OptionField logits_budget(std::int64_t &value) {
  return OptionField("logits_budget_bytes", &value, "Memory for full scores, where they are needed.")
      .at_least(1)
      .hidden();
}

// The config as options read it: what the sampler's own section says replaces what stands beside it, even where it
// says nothing.
OptionMembers without_sampler_config(const OptionMembers &config) {
  static const char *const kSamplerClass = "EntropyBoundSamplerConfig";
  OptionMembers flat;
  const Json *sampler = nullptr;
  for (const auto &member : config) {
    if (member.first == "sampler_config")
      sampler = member.second;
    else
      flat.push_back(member);
  }
  if (sampler == nullptr || sampler->is_null()) return flat;
  const Json *name = sampler->kind() == Json::Kind::object ? sampler->find("_cls_name") : nullptr;
  if (sampler->kind() != Json::Kind::object ||
      (name != nullptr && (name->kind() != Json::Kind::string || name->string() != kSamplerClass)))
    fail(EK_INVALID_ARGUMENT, "sampler_config is ", shown(*sampler), "; only ", kSamplerClass, " is supported");
  flat.erase(std::remove_if(flat.begin(), flat.end(), [](const auto &m) { return m.first == "entropy_bound"; }),
             flat.end());
  if (const Json *bound = sampler->find("entropy_bound")) flat.emplace_back("entropy_bound", bound);
  return flat;
}

}  // namespace

OptionFields DiffusionGemmaOptions::fields() {
  return {
      count("max_new_tokens", &max_new_tokens, "Length of the answer in tokens, rounded up to whole canvases."),
      count("max_length", &max_length,
             "Prompt and answer together, in tokens; the answer is rounded up to whole canvases."),
      count("canvas_length", &canvas_length, "Positions of a canvas; the model has been trained for one."),
      count("steps", &steps, "Denoising steps of a canvas, at most.").also({"max_denoising_steps"}),
      OptionField("entropy_bound", &entropy_bound, "Nats that the tokens accepted in one step may have together.")
          .above(0),
      temperature_of("t_min", &t_min, "Temperature that the last step comes near."),
      temperature_of("t_max", &t_max, "Temperature of the first step; above t_min.").at_least(kLeastTemperature),
      OptionField("stability_threshold", &stability_threshold,
                  "Steps without a change after which a confident canvas is done; null: never.")
          .at_least(0)
          .at_most(kMostTokens),
      OptionField("confidence_threshold", &confidence_threshold,
                  "Mean entropy in nats below which a canvas is confident; null: never.")
          .above(0),
      eos_tokens(eos_token_ids),
      OptionField("pad_token_id", &pad_token_id, "Token that fills a canvas behind its end token.").token(),
      OptionField("continue_prefix", &continue_prefix, "Go on behind the text that is encoded already.").hidden(),
  };
}

void DiffusionGemmaOptions::check() const {
  DiffusionGemmaOptions copy = *this;
  check_fields(copy.fields());
  if (t_max <= t_min)
    fail(EK_INVALID_ARGUMENT, "t_max ", json_text(t_max), " is not above t_min ", json_text(t_min),
         "; the temperature must fall");
}

DiffusionGemmaOptions DiffusionGemmaOptions::of(const OptionMembers &config, const OptionMembers &wishes,
                                                std::int64_t canvas_length) {
  DiffusionGemmaOptions own;
  const Given given = read_fields(own.fields(), without_sampler_config(config), wishes);
  if (canvas_length != 0 && given.by_wishes.count("canvas_length") == 0) own.canvas_length = canvas_length;
  own.check();
  return own;
}

std::int64_t DiffusionGemmaOptions::wanted(std::int64_t prompt) const {
  if (!max_length) return max_new_tokens;
  if (*max_length <= prompt)
    fail(EK_INVALID_ARGUMENT, "the prompt has ", prompt, " tokens and max_length is ", *max_length,
         "; use a max_length of at least ", prompt + 1);
  return max_new_tokens == default_max_new_tokens ? *max_length - prompt : max_new_tokens;
}

std::int64_t DiffusionGemmaOptions::canvases(std::int64_t prompt) const {
  return rounded_up(wanted(prompt), canvas_length) / canvas_length;
}

std::string DiffusionGemmaOptions::new_tokens_text(std::int64_t prompt) const {
  const std::int64_t asked = wanted(prompt), rounded = rounded_up(asked, canvas_length);
  const std::string text = std::to_string(asked) + " new tokens";
  if (rounded == asked) return text;
  return text + ", rounded up to " + std::to_string(rounded) + ", whole canvases of " +
         std::to_string(canvas_length) + ",";
}

Lengths DiffusionGemmaOptions::lengths(std::int64_t prompt) const {
  const std::int64_t count = canvases(prompt);
  // The last canvas is never encoded.
  return {count * canvas_length, prompt + (count - 1) * canvas_length, canvas_length, count, steps};
}

OptionFields LladaOptions::fields() {
  return {
      mask_token(mask_token_id),
      count("max_new_tokens", &max_new_tokens, "Length of the answer in tokens, rounded up to whole blocks.")
          .also({"gen_length"}),
      count("steps", &steps, "Denoising steps, unless threshold or factor is set."),
      count("block_length", &block_length, "Tokens of a block; blocks are decoded from left to right."),
      temperature_of("temperature", &temperature, "Gumbel noise on the scores; 0 takes the best token."),
      OptionField("cfg_scale", &cfg_scale, "Classifier-free guidance; above 0 every step has two passes.").at_least(0),
      OptionField("remasking", &remasking, "Which open positions wait.").one_of({"low_confidence", "random"}),
      OptionField("threshold", &threshold, "Confidence at which a token is committed at once (Fast-dLLM).")
          .above(0)
          .at_most(1),
      OptionField("factor", &factor, "Tokens a step by their confidences together (Fast-dLLM).").above(0),
      eos_tokens(eos_token_ids),
      OptionField("eot_token_ids", &eot_token_ids, "Tokens that end a turn.").token().also({"eot_token_id"}),
      OptionField("logits_eos_inf", &logits_eos_inf, "Forbid the tokens that end the answer."),
      OptionField("confidence_eos_eot_inf", &confidence_eos_eot_inf,
                  "Commit tokens that end the answer or the turn last."),
      edgekit::stop_at_eos(stop_at_eos),
      logits_budget(logits_budget_bytes),
  };
}

void LladaOptions::check() const {
  LladaOptions copy = *this;
  check_fields(copy.fields());
  check_temperature("temperature", temperature);
  need_eos("logits_eos_inf", logits_eos_inf, eos_token_ids);
  need_eos("confidence_eos_eot_inf", confidence_eos_eot_inf, eos_token_ids);
  need_eos("stop_at_eos", stop_at_eos, eos_token_ids);
  if (max_new_tokens % block_length != 0)
    fail(EK_INVALID_ARGUMENT, "max_new_tokens ", max_new_tokens, " is not a multiple of block_length ", block_length,
         "; use ", rounded_up(max_new_tokens, block_length));
  if (threshold && factor) fail(EK_INVALID_ARGUMENT, "threshold and factor are both set; use one of them");
  if (threshold || factor) {
    if (remasking != "low_confidence")
      fail(EK_INVALID_ARGUMENT, "threshold and factor compare confidences; use remasking low_confidence");
  } else if (steps % blocks() != 0) {
    fail(EK_INVALID_ARGUMENT, "steps ", steps, " is not a multiple of the ", blocks(),
         " blocks (max_new_tokens / block_length); use ", rounded_up(steps, blocks()));
  }
}

LladaOptions LladaOptions::of(const OptionMembers &config, const OptionMembers &wishes) {
  LladaOptions own;
  const Given given = read_fields(own.fields(), config, wishes);
  own.block_length = std::min(own.block_length, own.max_new_tokens);
  own.max_new_tokens = rounded_up(own.max_new_tokens, own.block_length);
  if (!given.has("steps")) own.steps = own.max_new_tokens;
  own.steps = rounded_up(own.steps, own.blocks());
  if (!given.has("stop_at_eos")) own.stop_at_eos = !own.eos_token_ids.empty();
  own.check();
  return own;
}

std::vector<std::int64_t> LladaOptions::end_ids() const {
  std::vector<std::int64_t> ids = eos_token_ids;
  ids.insert(ids.end(), eot_token_ids.begin(), eot_token_ids.end());
  return ids;
}

Lengths LladaOptions::lengths(std::int64_t prompt) const {
  const bool fixed = !threshold && !factor;
  return {max_new_tokens, 0, prompt + max_new_tokens, blocks(), fixed ? steps / blocks() : block_length};
}

std::string LladaOptions::new_tokens_text(std::int64_t) const {
  const std::string text = std::to_string(max_new_tokens) + " new tokens";
  const bool several = block_length > 1 && block_length < max_new_tokens;
  return several ? text + ", whole blocks of " + std::to_string(block_length) + "," : text;
}

OptionFields DreamOptions::fields() {
  return {
      mask_token(mask_token_id),
      count("max_new_tokens", &max_new_tokens, "Length of the answer in tokens.").also({"gen_length"}),
      count("steps", &steps, "Denoising steps."),
      OptionField("eps", &eps, "Time at which denoising ends.").above(0).at_most(0.999),
      OptionField("alg", &alg, "Which open positions are unmasked first.")
          .one_of({"origin", "maskgit_plus", "topk_margin", "entropy"}),
      temperature_of("alg_temp", &alg_temp, "Randomness of that order; 0 or null: none."),
      temperature_of("temperature", &temperature, "Of the distribution that tokens are drawn from; 0: the best."),
      OptionField("top_p", &top_p, "Draw from the likeliest tokens of this probability together.").above(0).at_most(1),
      count("top_k", &top_k, "Draw from so many of the likeliest tokens."),
      eos_tokens(eos_token_ids),
      edgekit::stop_at_eos(stop_at_eos),
      logits_budget(logits_budget_bytes),
  };
}

void DreamOptions::check() const {
  DreamOptions copy = *this;
  check_fields(copy.fields());
  check_temperature("alg_temp", alg_temp.value_or(0));
  check_temperature("temperature", temperature);
  need_eos("stop_at_eos", stop_at_eos, eos_token_ids);
}

DreamOptions DreamOptions::of(const OptionMembers &config, const OptionMembers &wishes) {
  DreamOptions own;
  const Given given = read_fields(own.fields(), config, wishes);
  if (!given.has("steps")) own.steps = own.max_new_tokens;
  if (!given.has("stop_at_eos")) own.stop_at_eos = !own.eos_token_ids.empty();
  own.check();
  return own;
}

Lengths DreamOptions::lengths(std::int64_t prompt) const {
  return {max_new_tokens, 0, prompt + max_new_tokens, 1, steps};
}

std::string DreamOptions::new_tokens_text(std::int64_t) const {
  return std::to_string(max_new_tokens) + " new tokens";
}

}  // namespace edgekit
