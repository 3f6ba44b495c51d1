// Options of the denoising loops: the fields, defaults and rules of the Python classes, which describe each.
#ifndef EDGEKIT_SAMPLING_OPTIONS_H
#define EDGEKIT_SAMPLING_OPTIONS_H

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "json.h"

namespace edgekit {

class OptionVisitor;

// Bounds lengths and steps: far beyond any model, so that what is computed from them stays a length.
constexpr std::int64_t kMostTokens = std::int64_t{1} << 22;

// Members of a generation config or of the caller's overrides; the values belong to others.
using OptionMembers = std::vector<std::pair<std::string, const Json *>>;

// Positions of a generation, at most: how many it adds to its prompt, the longest prefix that it encodes, and the
// longest canvas that it denoises.
struct Lengths {
  std::int64_t new_tokens = 0, prefix = 0, canvas = 0;
};

// from_members takes a generation config and the caller's overrides, which win; key names are those of Python's
// from_generation_config, and so are the errors (EK_INVALID_ARGUMENT). check() throws the same for what a caller has
// put into the fields. lengths() is for a prompt of that length, an earlier prefix counted with it; it throws Error
// (EK_INVALID_ARGUMENT) where the options leave such a prompt no room. new_tokens_text() says in words how many tokens
// it gets, as Python's. ignored_keys: what the config says to other
// samplers, sorted.

struct DiffusionGemmaOptions {
  static constexpr std::int64_t default_max_new_tokens = 256;

  std::int64_t max_new_tokens = default_max_new_tokens;
  std::optional<std::int64_t> max_length;
  std::int64_t canvas_length = 256;
  std::int64_t max_denoising_steps = 48;
  double entropy_bound = 0.1;
  double t_min = 0.4;
  double t_max = 0.8;
  std::optional<std::int64_t> stability_threshold = 1;
  std::optional<double> confidence_threshold = 0.005;
  std::vector<std::int64_t> eos_token_ids;
  std::optional<std::int64_t> pad_token_id;
  bool continue_prefix = false;
  std::vector<std::string> ignored_keys;

  std::int64_t wanted(std::int64_t prompt) const;    // new tokens before they are rounded up; throws as lengths()
  std::int64_t canvases(std::int64_t prompt) const;  // at most; throws as lengths()

  static DiffusionGemmaOptions from_members(const OptionMembers &config, const OptionMembers &overrides);
  void check() const;
  Lengths lengths(std::int64_t prompt) const;
  std::string new_tokens_text(std::int64_t prompt) const;
  void list(OptionVisitor &visitor);
};

struct LladaOptions {
  std::int64_t mask_token_id = -1;  // has no default
  std::int64_t gen_length = 128;
  std::int64_t steps = 128;
  std::int64_t block_length = 128;
  double temperature = 0.0;
  double cfg_scale = 0.0;
  std::string remasking = "low_confidence";
  std::optional<double> threshold;
  std::optional<double> factor;
  std::vector<std::int64_t> eos_token_ids;
  std::vector<std::int64_t> eot_token_ids;
  bool logits_eos_inf = false;
  bool confidence_eos_eot_inf = false;
  bool stop_at_eos = false;
  std::int64_t logits_budget_bytes = 64 << 20;
  std::vector<std::string> ignored_keys;

  std::int64_t blocks() const { return gen_length / block_length; }
  std::vector<std::int64_t> end_ids() const;  // eos, then eot

  static LladaOptions from_members(const OptionMembers &config, const OptionMembers &overrides);
  void check() const;
  Lengths lengths(std::int64_t prompt) const;
  std::string new_tokens_text(std::int64_t prompt) const;
  void list(OptionVisitor &visitor);
};

struct DreamOptions {
  std::int64_t mask_token_id = -1;  // has no default
  std::int64_t max_new_tokens = 128;
  std::int64_t steps = 512;
  double eps = 1e-3;
  std::string alg = "origin";
  std::optional<double> alg_temp;
  double temperature = 0.0;
  std::optional<double> top_p;
  std::optional<std::int64_t> top_k;
  std::vector<std::int64_t> eos_token_ids;
  bool stop_at_eos = false;
  std::int64_t logits_budget_bytes = 64 << 20;
  std::vector<std::string> ignored_keys;

  static DreamOptions from_members(const OptionMembers &config, const OptionMembers &overrides);
  void check() const;
  Lengths lengths(std::int64_t prompt) const;
  std::string new_tokens_text(std::int64_t prompt) const;
  void list(OptionVisitor &visitor);
};

// The options as a JSON object that from_members takes as overrides; without ignored_keys.
std::string text_of(DiffusionGemmaOptions options);
std::string text_of(LladaOptions options);
std::string text_of(DreamOptions options);

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_OPTIONS_H
