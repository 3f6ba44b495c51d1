// Options and arithmetic of the samplers for tests in Python. Functions that return a status leave their answer, or the
// message of an error, as text for ekt_sampling_text.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "edgekit.h"
#include "error.h"
#include "json.h"
#include "sampling/generate.h"
#include "sampling/generation_options.h"
#include "sampling/option_visitor.h"
#include "sampling/portable.h"
#include "sampling/python_text.h"
#include "sampling/schedule.h"

namespace {

using namespace edgekit;

thread_local std::string text;

ek_status guarded(const std::function<void()> &function) {
  try {
    text.clear();
    function();
    return EK_OK;
  } catch (const Error &error) {
    text = error.what();
    return error.status();
  } catch (const std::exception &error) {
    text = error.what();
    return EK_INTERNAL;
  }
}

// Members of a JSON object.
class Writer {
 public:
  void put(const char *name, const std::string &json) {
    text += text.empty() ? "{" : ", ";
    text += std::string("\"") + name + "\": " + json;
  }
  void put(const char *name, std::int64_t value) { put(name, std::to_string(value)); }
  void put_bool(const char *name, bool value) { put(name, std::string(value ? "true" : "false")); }
  void put_number(const char *name, double value) { put(name, python_repr(value)); }
  void put_text(const char *name, const std::string &value) { put(name, '"' + value + '"'); }
  void put(const char *name, const std::vector<std::int64_t> &values) {
    std::string all;
    for (const std::int64_t value : values) all += (all.empty() ? "" : ", ") + std::to_string(value);
    put(name, '[' + all + ']');
  }
  void put(const char *name, const std::vector<std::string> &values) {
    std::string all;
    for (const std::string &value : values) all += (all.empty() ? "\"" : ", \"") + value + '"';
    put(name, '[' + all + ']');
  }
  void put(const char *name, const std::optional<std::int64_t> &value) {
    put(name, value ? std::to_string(*value) : std::string("null"));
  }
  void put(const char *name, const std::optional<double> &value) {
    put(name, value ? python_repr(*value) : std::string("null"));
  }
};

void write(const DiffusionGemmaOptions &o) {
  Writer w;
  w.put("max_new_tokens", o.max_new_tokens);
  w.put("max_length", o.max_length);
  w.put("canvas_length", o.canvas_length);
  w.put("max_denoising_steps", o.max_denoising_steps);
  w.put_number("entropy_bound", o.entropy_bound);
  w.put_number("t_min", o.t_min);
  w.put_number("t_max", o.t_max);
  w.put("stability_threshold", o.stability_threshold);
  w.put("confidence_threshold", o.confidence_threshold);
  w.put("eos_token_ids", o.eos_token_ids);
  w.put("pad_token_id", o.pad_token_id);
  w.put_bool("continue_prefix", o.continue_prefix);
  w.put("ignored_keys", o.ignored_keys);
}

void write(const LladaOptions &o) {
  Writer w;
  w.put("mask_token_id", o.mask_token_id);
  w.put("gen_length", o.gen_length);
  w.put("steps", o.steps);
  w.put("block_length", o.block_length);
  w.put_number("temperature", o.temperature);
  w.put_number("cfg_scale", o.cfg_scale);
  w.put_text("remasking", o.remasking);
  w.put("threshold", o.threshold);
  w.put("factor", o.factor);
  w.put("eos_token_ids", o.eos_token_ids);
  w.put("eot_token_ids", o.eot_token_ids);
  w.put_bool("logits_eos_inf", o.logits_eos_inf);
  w.put_bool("confidence_eos_eot_inf", o.confidence_eos_eot_inf);
  w.put_bool("stop_at_eos", o.stop_at_eos);
  w.put("logits_budget_bytes", o.logits_budget_bytes);
  w.put("ignored_keys", o.ignored_keys);
}

void write(const DreamOptions &o) {
  Writer w;
  w.put("mask_token_id", o.mask_token_id);
  w.put("max_new_tokens", o.max_new_tokens);
  w.put("steps", o.steps);
  w.put_number("eps", o.eps);
  w.put_text("alg", o.alg);
  w.put("alg_temp", o.alg_temp);
  w.put_number("temperature", o.temperature);
  w.put("top_p", o.top_p);
  w.put("top_k", o.top_k);
  w.put("eos_token_ids", o.eos_token_ids);
  w.put_bool("stop_at_eos", o.stop_at_eos);
  w.put("logits_budget_bytes", o.logits_budget_bytes);
  w.put("ignored_keys", o.ignored_keys);
}

void write(const SamplerOptions &options) {
  std::visit([](const auto &chosen) { write(chosen); }, options);
  text += "}";
}

}  // namespace

extern "C" {

EK_API const char *ekt_sampling_text() { return text.c_str(); }

// The options as JSON.
EK_API ek_status ekt_sampling_options(const char *name, const char *config, const char *overrides) {
  return guarded([&] {
    const Json own = Json::parse(config, "config"), given = Json::parse(overrides, "overrides");
    write(sampler_options(name, members_of(own), members_of(given)));
  });
}

// The options of one generation and, behind them, its lengths for a prompt of that length. `wishes` has the members
// "max_new_tokens", "steps" and "options", each of which may be missing.
EK_API ek_status ekt_generation_options(const char *name, const char *config, std::int64_t canvas_length,
                                        const char *wishes, std::int64_t prompt) {
  return guarded([&] {
    const Json own = Json::parse(config, "config"), wished = Json::parse(wishes, "wishes");
    GenerationWishes wanted;
    if (const Json *value = wished.find("max_new_tokens")) wanted.max_new_tokens = value->integer();
    if (const Json *value = wished.find("steps")) wanted.steps = value->integer();
    if (const Json *value = wished.find("options")) wanted.options = members_of(*value);
    const SamplerOptions options = generation_options(name, members_of(own), canvas_length, wanted);
    const Lengths found = lengths(options, prompt);
    write(options);
    text.pop_back();
    Writer().put("lengths", std::vector<std::int64_t>{found.new_tokens, found.prefix, found.canvas});
    Writer().put_text("new_tokens", new_tokens_text(options, prompt));
    text += "}";
  });
}

// repr() of a JSON value.
EK_API ek_status ekt_python_repr(const char *json) {
  return guarded([&] { text = python_repr(Json::parse(json, "value")); });
}

// `names` is a JSON list.
EK_API ek_status ekt_closest_name(const char *word, const char *names) {
  return guarded([&] {
    std::vector<std::string> all;
    const Json list = Json::parse(names, "names");
    for (const Json &name : list.array()) all.push_back(name.string());
    text = closest_name(word, all);
  });
}

EK_API void ekt_portable_exp(const float *x, std::int64_t count, float *y) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = portable_exp(x[i]);
}

EK_API void ekt_portable_log(const double *x, std::int64_t count, double *y) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = portable_log(x[i]);
}

EK_API double ekt_portable_total(const float *x, std::int64_t count) { return total(x, count); }

EK_API float ekt_linear_temperature(std::int64_t remaining, std::int64_t steps, double t_min, double t_max) {
  return linear_temperature(remaining, steps, t_min, t_max);
}

EK_API void ekt_accept_by_entropy(const float *entropy, std::int64_t count, double bound, std::uint8_t *accepted) {
  const std::vector<std::uint8_t> result = accept_by_entropy({entropy, entropy + count}, bound);
  std::copy(result.begin(), result.end(), accepted);
}

EK_API std::int64_t ekt_count_by_factor(const float *confidence, std::int64_t count, double factor) {
  return count_by_factor({confidence, confidence + count}, factor);
}

EK_API std::int64_t ekt_count_above_threshold(const float *confidence, std::int64_t count, double threshold) {
  return count_above_threshold({confidence, confidence + count}, threshold);
}

EK_API void ekt_most_confident(const float *confidence, std::int64_t count, std::int64_t wanted, std::int64_t *out) {
  const std::vector<std::int64_t> result =
      most_confident(std::vector<float>(confidence, confidence + count), wanted);
  std::copy(result.begin(), result.end(), out);
}

// times [steps + 1], shares [steps].
EK_API void ekt_timesteps(std::int64_t steps, double eps, float *times, float *shares) {
  const std::vector<float> result = timesteps(steps, eps);
  std::copy(result.begin(), result.end(), times);
  for (std::int64_t i = 0; i < steps; ++i) shares[i] = transfer_probability(result, i);
}

}  // extern "C"
