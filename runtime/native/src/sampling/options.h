// Options of the denoising procedures: what a generation may be told, by family.
#ifndef EDGEKIT_SAMPLING_OPTIONS_H
#define EDGEKIT_SAMPLING_OPTIONS_H

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sampling/acceptance.h"
#include "sampling/option_fields.h"

namespace edgekit {

// Bounds lengths and steps: far beyond any model, so that what is computed from them stays a length.
constexpr std::int64_t kMostTokens = std::int64_t{1} << 22;

// Positions of a generation, at most: how many it adds to its prompt, the longest prefix that it encodes, and the
// longest canvas that it denoises; its canvases, with denoising steps for each; and segments of a pass.
struct Lengths {
  std::int64_t new_tokens = 0, prefix = 0, canvas = 0, canvases = 0, steps = 0;
  std::int64_t segments = 1;  // of a pass
};

// What the families' options have in common:
//  - of() takes the generation config of a checkpoint and the caller's wishes, which win, and settles what neither says:
//    see there. It throws Error (EK_INVALID_ARGUMENT), as check() does for what a caller has put into the members.
//  - lengths() is for a prompt of that length, earlier text counted with it. It throws Error (EK_INVALID_ARGUMENT) where
//    the options leave such a prompt no room. new_tokens_text() says in words how many tokens it gets.
//  - draws() says whether anything is drawn: else every seed gives the same answer.
//  - fields() points into the struct.

struct DiffusionGemmaOptions {
  static constexpr std::int64_t default_max_new_tokens = 256;

  std::int64_t max_new_tokens = default_max_new_tokens;
  std::optional<std::int64_t> max_length;
  std::int64_t canvas_length = 256;
  std::int64_t steps = 48;  // of a canvas, at most
  double entropy_bound = 0.1;
  double t_min = 0.4;
  double t_max = 0.8;
  std::optional<std::int64_t> stability_threshold = 1;
  std::optional<double> confidence_threshold = 0.005;
  std::optional<std::int64_t> persistence;
  double persistent_entropy = 0.5;
  std::optional<double> verify_bound;
  std::vector<std::int64_t> canvas, fixed;
  std::vector<std::int64_t> eos_token_ids;
  std::optional<std::int64_t> pad_token_id;
  bool continue_prefix = false;

  std::int64_t wanted(std::int64_t prompt) const;    // new tokens before they are rounded up; throws as lengths()
  std::int64_t canvases(std::int64_t prompt) const;  // at most; throws as lengths()

  // `canvas_length` is the model's, which the caller's alone may replace; 0: any.
  static DiffusionGemmaOptions of(const OptionMembers &config, const OptionMembers &wishes,
                                  std::int64_t canvas_length);
  void check() const;
  UnusedOptions unused() const;
  bool draws() const;
  Lengths lengths(std::int64_t prompt) const;
  std::string new_tokens_text(std::int64_t prompt) const;
  OptionFields fields();
};

struct LladaOptions {
  std::int64_t mask_token_id = -1;  // has no default
  std::int64_t max_new_tokens = 128;
  std::int64_t steps = 128;
  std::int64_t block_length = 32;
  double temperature = 0.0;
  double cfg_scale = 0.0;
  std::string remasking = "low_confidence";
  std::string order = "confidence";
  std::optional<double> trim;
  AcceptanceRules rules;
  std::string cache = "none";
  std::optional<std::int64_t> cache_refresh;  // none: refresh()
  std::int64_t draft_steps = 1;
  std::vector<std::int64_t> canvas;
  std::vector<std::int64_t> eos_token_ids;
  std::vector<std::int64_t> eot_token_ids;
  bool logits_eos_inf = false;
  bool confidence_eos_eot_inf = false;
  bool stop_at_eos = false;
  std::int64_t logits_budget_bytes = 64 << 20;

  std::int64_t blocks() const { return max_new_tokens / block_length; }
  std::int64_t refresh() const { return cache_refresh.value_or(8); }  // table 1 of arXiv 2505.15781
  std::vector<std::int64_t> end_ids() const;  // eos, then eot

  // Lengths and steps are rounded up: to whole blocks, and to as many steps for each. As many steps as tokens, and an
  // end at the first end token, because what is filled in behind it helps nobody, unless told otherwise. A given canvas
  // is the whole answer, and one block.
  static LladaOptions of(const OptionMembers &config, const OptionMembers &wishes);
  void check() const;
  UnusedOptions unused() const;
  bool draws() const;
  Lengths lengths(std::int64_t prompt) const;
  std::string new_tokens_text(std::int64_t prompt) const;
  OptionFields fields();
};

struct DreamOptions {
  std::int64_t mask_token_id = -1;  // has no default
  std::int64_t max_new_tokens = 128;
  std::int64_t steps = 128;
  std::optional<std::int64_t> block_length;  // none: the whole answer
  double eps = 1e-3;
  std::string alg = "entropy";
  std::optional<double> alg_temp;
  std::string order = "confidence";
  double temperature = 0.0;
  std::optional<double> top_p;
  std::optional<std::int64_t> top_k;
  AcceptanceRules rules;
  std::string cache = "none";
  std::optional<std::int64_t> cache_refresh;  // none: refresh()
  std::int64_t draft_steps = 1;
  std::vector<std::int64_t> canvas;
  std::vector<std::int64_t> eos_token_ids;
  bool stop_at_eos = false;
  std::int64_t logits_budget_bytes = 64 << 20;

  std::int64_t blocks() const { return max_new_tokens / block_length.value_or(max_new_tokens); }
  std::int64_t refresh() const { return cache_refresh.value_or(4); }  // table 2 of arXiv 2505.15781
  // Whether the pass that begins a block keeps rows for the others.
  bool keeps_blocks() const { return cache == "prefix" || cache == "dual"; }
  // Of a block, at most; rules may take one for each token.
  std::int64_t most_steps() const;
  // Whether more can be asked of a pass: not of one with segments.
  bool asks_again() const { return cache == "none" && draft_steps == 1; }

  // Steps, end, whole blocks and a given canvas as LLaDA's.
  static DreamOptions of(const OptionMembers &config, const OptionMembers &wishes);
  void check() const;
  UnusedOptions unused() const;
  bool draws() const;
  Lengths lengths(std::int64_t prompt) const;
  std::string new_tokens_text(std::int64_t prompt) const;
  OptionFields fields();
};

// Of families that decode block by block behind a prefix.
struct BlockOptions {
  std::int64_t mask_token_id = -1;  // has no default
  std::int64_t max_new_tokens = 128;
  std::int64_t block_length = 32;
  std::int64_t steps = 32;  // of a block
  std::optional<double> threshold;
  std::string remasking = "low_confidence";
  double entropy_bound = 0.35;
  std::optional<std::int64_t> small_block_length;
  std::optional<double> editing_threshold;
  std::int64_t max_post_steps = 16;
  std::int64_t max_block_steps = 1000;
  std::optional<std::int64_t> delete_token_id, insert_token_id;
  double temperature = 0.0;
  std::optional<double> top_p;
  std::optional<std::int64_t> top_k;
  std::string mode = "diffusion";
  std::int64_t ahead = 1;
  std::int64_t draft_adapter = 0;  // 0: none
  bool ride = true;
  bool causal_start = false;
  std::int64_t draft_steps = 1;
  std::string align = "position";
  std::vector<std::int64_t> eos_token_ids;
  bool stop_at_eos = false;
  bool continue_prefix = false;

  // As many steps as a block has tokens, and an end at the first end token, unless told otherwise.
  static BlockOptions of(const OptionMembers &config, const OptionMembers &wishes);
  bool edits() const { return editing_threshold.has_value(); }
  void check() const;
  UnusedOptions unused() const;
  bool draws() const;
  Lengths lengths(std::int64_t prompt) const;
  std::string new_tokens_text(std::int64_t prompt) const;
  OptionFields fields();
};

// The options as a JSON object, which of() takes as wishes.
template <typename Options>
std::string text_of(Options options) {
  return text_of(options.fields());
}

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_OPTIONS_H
