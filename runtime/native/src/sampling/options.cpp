#include "sampling/options.h"

#include <algorithm>
#include <map>

#include "error.h"
#include "sampling/option_visitor.h"
#include "sampling/python_text.h"

namespace edgekit {
namespace {

constexpr Bounds at_least(double minimum) { return {minimum, false, std::nullopt}; }
constexpr Bounds above(double minimum) { return {minimum, true, std::nullopt}; }
constexpr Bounds above(double minimum, double maximum) { return {minimum, true, maximum}; }

// The next multiple of `of`.
std::int64_t rounded_up(std::int64_t value, std::int64_t of) { return value / of * of + (value % of != 0 ? of : 0); }

void need_eos(const char *name, bool value, const std::vector<std::int64_t> &eos_token_ids) {
  if (value && eos_token_ids.empty())
    fail(EK_INVALID_ARGUMENT, name, " needs eos_token_ids; set the end tokens of this model");
}

template <typename Options>
void check_copy(Options options) {
  check_options([&](OptionVisitor &visitor) { options.list(visitor); });
}

template <typename Options>
Options read(const std::map<std::string, std::string> &aliases, const char *required, const OptionMembers &config,
             const OptionMembers &overrides) {
  Options options;
  options.ignored_keys =
      read_options([&](OptionVisitor &visitor) { options.list(visitor); }, aliases, required, config, overrides);
  return options;
}

template <typename Options>
std::string json_of(Options &options) {
  return options_text([&](OptionVisitor &visitor) { options.list(visitor); });
}

}  // namespace

std::string text_of(DiffusionGemmaOptions options) { return json_of(options); }
std::string text_of(LladaOptions options) { return json_of(options); }
std::string text_of(DreamOptions options) { return json_of(options); }

void DiffusionGemmaOptions::list(OptionVisitor &visitor) {
  visitor.integer("max_new_tokens", max_new_tokens, 1);
  visitor.integer("canvas_length", canvas_length, 1);
  visitor.integer("max_denoising_steps", max_denoising_steps, 1);
  visitor.integer("max_length", max_length, 1);
  visitor.number("entropy_bound", entropy_bound, above(0));
  visitor.number("t_min", t_min, at_least(0));
  visitor.number("t_max", t_max, at_least(0));
  if (t_max <= t_min)
    fail(EK_INVALID_ARGUMENT, "t_max ", visitor.text("t_max", t_max), " is not above t_min ",
         visitor.text("t_min", t_min), "; the temperature must fall");
  visitor.integer("stability_threshold", stability_threshold, 0);
  visitor.number("confidence_threshold", confidence_threshold, above(0));
  visitor.token_ids("eos_token_ids", eos_token_ids);
  visitor.integer("pad_token_id", pad_token_id, 0);
  visitor.flag("continue_prefix", continue_prefix);
}

void DiffusionGemmaOptions::check() const { check_copy(*this); }

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
  return {count * canvas_length, prompt + (count - 1) * canvas_length, canvas_length};
}

DiffusionGemmaOptions DiffusionGemmaOptions::from_members(const OptionMembers &config,
                                                          const OptionMembers &overrides) {
  static const char *const kSamplerClass = "EntropyBoundSamplerConfig";
  OptionMembers flat;
  const Json *sampler = nullptr;
  for (const auto &member : config) {
    if (member.first == "sampler_config")
      sampler = member.second;
    else
      flat.push_back(member);
  }
  if (sampler != nullptr && !sampler->is_null()) {
    const Json *name = sampler->kind() == Json::Kind::object ? sampler->find("_cls_name") : nullptr;
    if (sampler->kind() != Json::Kind::object ||
        (name != nullptr && (name->kind() != Json::Kind::string || name->string() != kSamplerClass)))
      fail(EK_INVALID_ARGUMENT, "sampler_config is ", python_repr(*sampler), "; only ", kSamplerClass,
           " is supported");
    // What it holds replaces what the config says beside it, even when it holds nothing.
    flat.erase(std::remove_if(flat.begin(), flat.end(), [](const auto &m) { return m.first == "entropy_bound"; }),
               flat.end());
    if (const Json *bound = sampler->find("entropy_bound")) flat.emplace_back("entropy_bound", bound);
  }
  return read<DiffusionGemmaOptions>({{"eos_token_id", "eos_token_ids"}}, nullptr, flat, overrides);
}

std::vector<std::int64_t> LladaOptions::end_ids() const {
  std::vector<std::int64_t> ids = eos_token_ids;
  ids.insert(ids.end(), eot_token_ids.begin(), eot_token_ids.end());
  return ids;
}

void LladaOptions::list(OptionVisitor &visitor) {
  visitor.integer("mask_token_id", mask_token_id, 0);
  visitor.integer("gen_length", gen_length, 1);
  visitor.integer("steps", steps, 1);
  visitor.integer("block_length", block_length, 1);
  visitor.integer("logits_budget_bytes", logits_budget_bytes, 1);
  visitor.number("temperature", temperature, at_least(0));
  visitor.number("cfg_scale", cfg_scale, at_least(0));
  visitor.choice("remasking", remasking, {"low_confidence", "random"});
  visitor.flag("logits_eos_inf", logits_eos_inf);
  visitor.flag("confidence_eos_eot_inf", confidence_eos_eot_inf);
  visitor.flag("stop_at_eos", stop_at_eos);
  visitor.token_ids("eos_token_ids", eos_token_ids);
  visitor.token_ids("eot_token_ids", eot_token_ids);
  need_eos("logits_eos_inf", logits_eos_inf, eos_token_ids);
  need_eos("confidence_eos_eot_inf", confidence_eos_eot_inf, eos_token_ids);
  need_eos("stop_at_eos", stop_at_eos, eos_token_ids);
  if (gen_length % block_length != 0)
    fail(EK_INVALID_ARGUMENT, "gen_length ", gen_length, " is not a multiple of block_length ", block_length, "; use ",
         rounded_up(gen_length, block_length));
  const bool by_threshold = visitor.is_set("threshold", threshold), by_factor = visitor.is_set("factor", factor);
  if (by_threshold && by_factor) fail(EK_INVALID_ARGUMENT, "threshold and factor are both set; use one of them");
  if (!by_threshold && !by_factor) {
    if (steps % blocks() != 0)
      fail(EK_INVALID_ARGUMENT, "steps ", steps, " is not a multiple of the ", blocks(),
           " blocks (gen_length / block_length); use ", rounded_up(steps, blocks()));
  } else if (remasking != "low_confidence") {
    fail(EK_INVALID_ARGUMENT, "threshold and factor compare confidences; use remasking low_confidence");
  }
  visitor.number("threshold", threshold, above(0, 1));
  visitor.number("factor", factor, above(0));
}

void LladaOptions::check() const { check_copy(*this); }

Lengths LladaOptions::lengths(std::int64_t prompt) const { return {gen_length, 0, prompt + gen_length}; }

std::string LladaOptions::new_tokens_text(std::int64_t) const {
  const std::string text = std::to_string(gen_length) + " new tokens";
  const bool several = block_length > 1 && block_length < gen_length;
  return several ? text + ", whole blocks of " + std::to_string(block_length) + "," : text;
}

LladaOptions LladaOptions::from_members(const OptionMembers &config, const OptionMembers &overrides) {
  return read<LladaOptions>({{"max_new_tokens", "gen_length"},
                             {"mask_id", "mask_token_id"},
                             {"eos_token_id", "eos_token_ids"},
                             {"eot_token_id", "eot_token_ids"}},
                            "mask_token_id", config, overrides);
}

void DreamOptions::list(OptionVisitor &visitor) {
  visitor.integer("mask_token_id", mask_token_id, 0);
  visitor.integer("max_new_tokens", max_new_tokens, 1);
  visitor.integer("steps", steps, 1);
  visitor.integer("logits_budget_bytes", logits_budget_bytes, 1);
  visitor.number("eps", eps, above(0, 0.999));
  visitor.choice("alg", alg, {"origin", "maskgit_plus", "topk_margin", "entropy"});
  visitor.number("alg_temp", alg_temp, at_least(0));
  visitor.number("temperature", temperature, at_least(0));
  visitor.number("top_p", top_p, above(0, 1));
  visitor.integer("top_k", top_k, 1);
  visitor.flag("stop_at_eos", stop_at_eos);
  visitor.token_ids("eos_token_ids", eos_token_ids);
  need_eos("stop_at_eos", stop_at_eos, eos_token_ids);
}

void DreamOptions::check() const { check_copy(*this); }

Lengths DreamOptions::lengths(std::int64_t prompt) const { return {max_new_tokens, 0, prompt + max_new_tokens}; }

std::string DreamOptions::new_tokens_text(std::int64_t) const {
  return std::to_string(max_new_tokens) + " new tokens";
}

DreamOptions DreamOptions::from_members(const OptionMembers &config, const OptionMembers &overrides) {
  return read<DreamOptions>({{"mask_id", "mask_token_id"},
                             {"eos_token_id", "eos_token_ids"},
                             {"gen_length", "max_new_tokens"}},
                            "mask_token_id", config, overrides);
}

}  // namespace edgekit
