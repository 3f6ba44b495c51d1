#include "sampling/options.h"

#include <algorithm>
#include <initializer_list>

#include "error.h"
#include "sampling/drafts.h"
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

OptionField masked_canvas(std::vector<std::int64_t> &value) {
  return OptionField("canvas", &value, "What the answer begins with, the mask token where it is open.").token();
}

void check_canvas(const std::vector<std::int64_t> &canvas, std::int64_t length) {
  if (static_cast<std::int64_t>(canvas.size()) > length)
    fail(EK_INVALID_ARGUMENT, "the canvas has ", canvas.size(), " tokens, the answer ", length,
         "; use a max_new_tokens of at least ", canvas.size());
}

OptionField block_cache(std::string &value) {
  return OptionField("cache", &value,
                     "Keys and values of the pass that begins a block serve its other steps: those before the block, or all "
                     "but its own (Fast-dLLM); delayed: of tokens that were there in the pass before (dKV-Cache). Approximate.")
      .one_of({"none", "prefix", "dual", "delayed"});
}

OptionField refresh(std::optional<std::int64_t> &value) {
  return count("cache_refresh", &value,
               "With cache delayed: of so many passes one computes everything; null: the 8 (LLaDA) or 4 (Dream) of the authors.");
}

OptionField steps_of_a_pass(std::int64_t &value) {
  return OptionField("draft_steps", &value,
                     "Steps that a pass computes at once where they are as the step before predicts; 1: one (FreeDave). Exact.")
      .at_least(1)
      .at_most(static_cast<double>(Drafts::kMostSteps));
}

template <typename Options>
void check_cache(const Options &options) {
  const std::string &cache = options.cache;
  if (options.cache_refresh && cache != "delayed")
    fail(EK_INVALID_ARGUMENT, "cache_refresh is for cache delayed, not ", cache, "; leave one of them out");
  if (cache == "delayed" && options.draft_steps > 1)
    fail(EK_INVALID_ARGUMENT, "draft_steps ", options.draft_steps, " computes steps beside each other, with cache delayed each keeps "
                              "what the next one sees; use 1, or another cache");
  if (cache == "dual" && options.rules.early_commit)
    fail(EK_INVALID_ARGUMENT, "early_commit looks at the whole answer, which cache dual does not compute; use cache prefix");
}

void check_blocks(std::int64_t max_new_tokens, std::int64_t block_length) {
  if (max_new_tokens % block_length != 0)
    fail(EK_INVALID_ARGUMENT, "max_new_tokens ", max_new_tokens, " is not a multiple of block_length ", block_length,
         "; use ", rounded_up(max_new_tokens, block_length));
}

void check_block_steps(std::int64_t steps, std::int64_t blocks) {
  if (steps % blocks != 0)
    fail(EK_INVALID_ARGUMENT, "steps ", steps, " is not a multiple of the ", blocks,
         " blocks (max_new_tokens / block_length); use ", rounded_up(steps, blocks));
}

// In words, of an answer in whole blocks.
std::string in_blocks_text(std::int64_t max_new_tokens, std::int64_t block_length) {
  const std::string text = std::to_string(max_new_tokens) + " new tokens";
  const bool several = block_length > 1 && block_length < max_new_tokens;
  return several ? text + ", whole blocks of " + std::to_string(block_length) + "," : text;
}

OptionField commit_order(std::string &value) {
  return OptionField("order", &value,
                     "Which open positions of a block go first: the surest, or by their logical role, premises, connectives, "
                     "steps, conclusions (LogicDiff); needs a role head.")
      .one_of({"confidence", "logic"});
}

void check_order(const std::string &order, const AcceptanceRules &rules) {
  if (order == "logic" && rules.replace_schedule())
    fail(EK_INVALID_ARGUMENT, "order logic commits as many positions as the schedule says, acceptance rules those that are "
                              "sure; leave one of them out");
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
      OptionField("persistence", &persistence,
                  "Steps that a token has been the best before it is kept for that, whatever the bound; null: never.")
          .at_least(1)
          .at_most(kMostTokens),
      OptionField("persistent_entropy", &persistent_entropy, "Nats that a token which is kept for its persistence may have.")
          .at_least(0),
      OptionField("verify_bound", &verify_bound,
                  "Nats of all tokens together up to which the best are shown to the model, and final if it predicts them "
                  "again; null: never.")
          .at_least(0),
      OptionField("canvas", &canvas, "Start of the first canvas, -1 for a random token.").token().at_least(-1),
      OptionField("fixed", &fixed, "Places of the first canvas that stay as `canvas` has them.").at_least(0),
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
  if (!canvas.empty() && static_cast<std::int64_t>(canvas.size()) != canvas_length)
    fail(EK_INVALID_ARGUMENT, "canvas has ", canvas.size(), " tokens; give the ", canvas_length,
         " of a whole canvas, -1 where one is open");
  for (const std::int64_t place : fixed) {
    const bool given = place < static_cast<std::int64_t>(canvas.size());
    if (given && canvas[static_cast<std::size_t>(place)] >= 0) continue;
    fail(EK_INVALID_ARGUMENT, "fixed names place ", place, ", for which canvas has no token; give it one");
  }
}

UnusedOptions DiffusionGemmaOptions::unused() const {
  UnusedOptions all;
  if (!persistence) all.emplace_back("persistent_entropy", "without persistence");
  if (!stability_threshold) all.emplace_back("confidence_threshold", "where stability_threshold is null");
  if (!confidence_threshold) all.emplace_back("stability_threshold", "where confidence_threshold is null");
  return all;
}

DiffusionGemmaOptions DiffusionGemmaOptions::of(const OptionMembers &config, const OptionMembers &wishes,
                                                std::int64_t canvas_length) {
  DiffusionGemmaOptions own;
  const Given given = read_fields(own.fields(), without_sampler_config(config), wishes);
  if (canvas_length != 0 && given.by_wishes.count("canvas_length") == 0) own.canvas_length = canvas_length;
  own.check();
  return own;
}

bool DiffusionGemmaOptions::draws() const { return true; }

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
  OptionFields all = {
      mask_token(mask_token_id),
      count("max_new_tokens", &max_new_tokens, "Length of the answer in tokens, rounded up to whole blocks.")
          .also({"gen_length"}),
      count("steps", &steps, "Denoising steps, unless an acceptance rule is set."),
      count("block_length", &block_length, "Tokens of a block; blocks are decoded from left to right."),
      temperature_of("temperature", &temperature, "Gumbel noise on the scores; 0 takes the best token."),
      OptionField("cfg_scale", &cfg_scale, "Classifier-free guidance; above 0 every step has two passes.").at_least(0),
      OptionField("remasking", &remasking, "Which open positions wait.").one_of({"low_confidence", "random"}),
      commit_order(order),
  };
  rules.append_fields(all);
  const OptionFields rest = {
      block_cache(cache),
      edgekit::refresh(cache_refresh),
      steps_of_a_pass(draft_steps),
      OptionField("trim", &trim,
                  "Probability of a predicted end of the answer from which the blocks behind it are dropped; null: none is. "
                  "Approximate.")
          .above(0)
          .at_most(1),
      masked_canvas(canvas),
      eos_tokens(eos_token_ids),
      OptionField("eot_token_ids", &eot_token_ids, "Tokens that end a turn.").token().also({"eot_token_id"}),
      OptionField("logits_eos_inf", &logits_eos_inf, "Forbid the tokens that end the answer."),
      OptionField("confidence_eos_eot_inf", &confidence_eos_eot_inf,
                  "Commit tokens that end the answer or the turn last."),
      edgekit::stop_at_eos(stop_at_eos),
      logits_budget(logits_budget_bytes),
  };
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

void LladaOptions::check() const {
  LladaOptions copy = *this;
  check_fields(copy.fields());
  check_temperature("temperature", temperature);
  need_eos("logits_eos_inf", logits_eos_inf, eos_token_ids);
  need_eos("confidence_eos_eot_inf", confidence_eos_eot_inf, eos_token_ids);
  need_eos("stop_at_eos", stop_at_eos, eos_token_ids);
  if (cache != "none" && (cfg_scale > 0 || logits_eos_inf))
    fail(EK_INVALID_ARGUMENT, "cache ", cache, " goes with neither cfg_scale nor logits_eos_inf; leave these out");
  if (draft_steps > 1 && (cfg_scale > 0 || logits_eos_inf))
    fail(EK_INVALID_ARGUMENT, "draft_steps ", draft_steps, " goes with neither cfg_scale nor logits_eos_inf, whose steps have several "
                              "passes; use 1, or leave these out");
  check_cache(*this);
  if (trim && !stop_at_eos)
    fail(EK_INVALID_ARGUMENT, "trim drops what is behind the end of the answer, which stop_at_eos looks for; set that, or leave "
                              "out trim");
  check_blocks(max_new_tokens, block_length);
  check_canvas(canvas, max_new_tokens);
  rules.check();
  check_order(order, rules);
  if (rules.any() && remasking != "low_confidence")
    fail(EK_INVALID_ARGUMENT, "acceptance rules compare confidences; use remasking low_confidence");
  if (!rules.replace_schedule()) check_block_steps(steps, blocks());
}

UnusedOptions LladaOptions::unused() const { return rules.unused(); }

LladaOptions LladaOptions::of(const OptionMembers &config, const OptionMembers &wishes) {
  LladaOptions own;
  const Given given = read_fields(own.fields(), config, wishes);
  if (!own.canvas.empty()) {
    if (given.by_wishes.count("max_new_tokens") == 0)
      own.max_new_tokens = static_cast<std::int64_t>(own.canvas.size());
    if (given.by_wishes.count("block_length") == 0) own.block_length = own.max_new_tokens;
  }
  own.block_length = std::min(own.block_length, own.max_new_tokens);
  own.max_new_tokens = rounded_up(own.max_new_tokens, own.block_length);
  if (!given.has("steps")) own.steps = own.max_new_tokens;
  own.steps = rounded_up(own.steps, own.blocks());
  if (!given.has("stop_at_eos")) own.stop_at_eos = !own.eos_token_ids.empty();
  own.check();
  return own;
}

bool LladaOptions::draws() const { return temperature > 0 || remasking == "random"; }

std::vector<std::int64_t> LladaOptions::end_ids() const {
  std::vector<std::int64_t> ids = eos_token_ids;
  ids.insert(ids.end(), eot_token_ids.begin(), eot_token_ids.end());
  return ids;
}

Lengths LladaOptions::lengths(std::int64_t prompt) const {
  const std::int64_t most = rules.replace_schedule() ? block_length : steps / blocks();
  const std::int64_t length = prompt + max_new_tokens;
  return {max_new_tokens, cache == "none" ? 0 : length, length, blocks(), most, draft_steps};
}

std::string LladaOptions::new_tokens_text(std::int64_t) const { return in_blocks_text(max_new_tokens, block_length); }

OptionFields DreamOptions::fields() {
  OptionFields all = {
      mask_token(mask_token_id),
      count("max_new_tokens", &max_new_tokens, "Length of the answer in tokens.").also({"gen_length"}),
      count("steps", &steps, "Denoising steps, unless an acceptance rule is set."),
      count("block_length", &block_length,
            "Tokens of a block; blocks are decoded from left to right. null: the whole answer is one."),
      OptionField("eps", &eps, "Time at which denoising ends.").above(0).at_most(0.999),
      OptionField("alg", &alg, "Which open positions are unmasked first.")
          .one_of({"origin", "maskgit_plus", "topk_margin", "entropy"}),
      temperature_of("alg_temp", &alg_temp, "Randomness of that order; 0 or null: none."),
      commit_order(order),
      temperature_of("temperature", &temperature, "Of the distribution that tokens are drawn from; 0: the best."),
      OptionField("top_p", &top_p, "Draw from the likeliest tokens of this probability together.").above(0).at_most(1),
      count("top_k", &top_k, "Draw from so many of the likeliest tokens."),
  };
  rules.append_fields(all);
  const OptionFields rest = {
      block_cache(cache),
      edgekit::refresh(cache_refresh),
      steps_of_a_pass(draft_steps),
      masked_canvas(canvas),
      eos_tokens(eos_token_ids),
      edgekit::stop_at_eos(stop_at_eos),
      logits_budget(logits_budget_bytes),
  };
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

void DreamOptions::check() const {
  DreamOptions copy = *this;
  check_fields(copy.fields());
  check_temperature("alg_temp", alg_temp.value_or(0));
  check_temperature("temperature", temperature);
  need_eos("stop_at_eos", stop_at_eos, eos_token_ids);
  check_cache(*this);
  check_blocks(max_new_tokens, block_length.value_or(max_new_tokens));
  check_canvas(canvas, max_new_tokens);
  rules.check();
  if (!rules.replace_schedule()) check_block_steps(steps, blocks());
  if (keeps_blocks() && alg == "origin")
    fail(EK_INVALID_ARGUMENT, "alg origin unmasks at random, which no cache is published for; use alg entropy, maskgit_plus ",
         "or topk_margin with cache ", cache);
  if (draft_steps > 1 && alg == "origin")
    fail(EK_INVALID_ARGUMENT, "draft_steps ", draft_steps, " drafts from what a pass predicts of all open positions, alg origin asks "
                              "for a few at random; use 1, or alg entropy, maskgit_plus or topk_margin");
  if (rules.any() && alg == "origin")
    fail(EK_INVALID_ARGUMENT, "alg origin unmasks at random, acceptance rules what is sure; use alg entropy, ",
         "maskgit_plus or topk_margin with them");
  check_order(order, rules);
  if (order == "logic" && alg == "origin")
    fail(EK_INVALID_ARGUMENT, "alg origin unmasks at random, order logic by roles; use alg entropy, maskgit_plus or topk_margin "
                              "with it");
  if (rules.replace_schedule() && alg_temp.value_or(0) > 0)
    fail(EK_INVALID_ARGUMENT, "alg_temp draws the positions that acceptance rules choose; use 0 with them");
}

bool DreamOptions::draws() const { return temperature > 0 || alg == "origin" || alg_temp.value_or(0) > 0; }

std::int64_t DreamOptions::most_steps() const {
  return rules.replace_schedule() ? block_length.value_or(max_new_tokens) : steps / blocks();
}

UnusedOptions DreamOptions::unused() const { return rules.unused(); }

DreamOptions DreamOptions::of(const OptionMembers &config, const OptionMembers &wishes) {
  DreamOptions own;
  const Given given = read_fields(own.fields(), config, wishes);
  if (!own.canvas.empty() && given.by_wishes.count("max_new_tokens") == 0)
    own.max_new_tokens = static_cast<std::int64_t>(own.canvas.size());
  if (!own.canvas.empty() && given.by_wishes.count("block_length") == 0) own.block_length.reset();
  if (own.block_length) {
    own.block_length = std::min(*own.block_length, own.max_new_tokens);
    own.max_new_tokens = rounded_up(own.max_new_tokens, *own.block_length);
  }
  if (!given.has("steps")) own.steps = own.max_new_tokens;
  own.steps = rounded_up(own.steps, own.blocks());
  if (!given.has("stop_at_eos")) own.stop_at_eos = !own.eos_token_ids.empty();
  own.check();
  return own;
}

Lengths DreamOptions::lengths(std::int64_t prompt) const {
  const std::int64_t length = prompt + max_new_tokens;
  return {max_new_tokens, cache == "none" ? 0 : length, length, 1, blocks() * most_steps(), draft_steps};
}

std::string DreamOptions::new_tokens_text(std::int64_t) const {
  return in_blocks_text(max_new_tokens, block_length.value_or(max_new_tokens));
}

OptionFields BlockOptions::fields() {
  return {
      mask_token(mask_token_id),
      count("max_new_tokens", &max_new_tokens, "Length of the answer in tokens.").also({"gen_length"}),
      count("block_length", &block_length, "Tokens of a block; the model has been trained for one.")
          .also({"block_size", "bd_size"}),
      count("steps", &steps, "Denoising steps of a block, at most; a step commits its share at least.")
          .also({"denoising_steps"}),
      OptionField("threshold", &threshold, "Confidence above which a token is committed at once; null: none is.")
          .at_least(0)
          .at_most(1),
      OptionField("remasking", &remasking,
                  "Which open positions wait: the least confident, the last, or by their entropy those beyond entropy_bound.")
          .one_of({"low_confidence", "sequential", "entropy"}),
      OptionField("entropy_bound", &entropy_bound, "Nats below which the tokens of a step stay together; remasking entropy.")
          .also({"eb_threshold"})
          .above(0),
      count("small_block_length", &small_block_length,
            "Tokens of the parts of a block that are decoded from left to right.")
          .also({"small_block_size"}),
      OptionField("editing_threshold", &editing_threshold,
                  "Confidence above which a token of the block replaces another; null: none is replaced.")
          .at_least(0)
          .at_most(1),
      OptionField("max_post_steps", &max_post_steps, "Steps that only edit, at most.").at_least(0).at_most(kMostTokens),
      count("max_block_steps", &max_block_steps, "Steps of a block that edits, at most.").also({"max_steps_per_block"}),
      OptionField("delete_token_id", &delete_token_id, "Token that takes its position away.").token(),
      OptionField("insert_token_id", &insert_token_id, "Token that puts an open position before its own.")
          .token()
          .also({"split_token_id"}),
      temperature_of("temperature", &temperature, "Of the distribution that tokens are drawn from; 0: the best."),
      OptionField("top_p", &top_p, "Draw from the likeliest tokens of this probability together, of those of top_k.")
          .above(0)
          .at_most(1),
      OptionField("top_k", &top_k, "Draw from so many of the likeliest tokens; 0 or null: all.").at_least(0).at_most(kMostTokens),
      OptionField("mode", &mode,
                  "Denoise blocks, write a token at a time, or draft blocks and verify them: the last two give the same "
                  "tokens.")
          .one_of({"diffusion", "autoregressive", "speculative"}),
      OptionField("ahead", &ahead,
                  "Speculative: in how many ways the next block is drafted while this one is verified; 0: afterwards.")
          .at_least(0)
          .at_most(kMostTokens),
      OptionField("draft_adapter", &draft_adapter,
                  "Speculative: the bundle's adapter that blocks are drafted with, 1; 0: none.")
          .at_least(0)
          .at_most(1),
      OptionField("ride", &ride, "Encode a block in the pass that begins the next one, unless it gives that its first token."),
      OptionField("causal_start", &causal_start,
                  "Begin a block with the token that a causal pass of the text before it predicts, else with masks alone."),
      steps_of_a_pass(draft_steps),
      OptionField("align", &align, "Where blocks are counted from: the first position, or the end of the prompt.")
          .one_of({"position", "prompt"})
          .hidden(),
      eos_tokens(eos_token_ids),
      edgekit::stop_at_eos(stop_at_eos),
      OptionField("continue_prefix", &continue_prefix, "Go on behind the text that is encoded already.").hidden(),
  };
}

void BlockOptions::check() const {
  BlockOptions copy = *this;
  check_fields(copy.fields());
  check_temperature("temperature", temperature);
  need_eos("stop_at_eos", stop_at_eos, eos_token_ids);
  if (steps > block_length)
    fail(EK_INVALID_ARGUMENT, "steps ", steps, " is more than the ", block_length, " tokens of a block; use ",
         block_length, " or less: every step commits one at least");
  if (small_block_length && block_length % *small_block_length != 0)
    fail(EK_INVALID_ARGUMENT, "block_length ", block_length, " is not a multiple of small_block_length ",
         *small_block_length);
  if (delete_token_id.has_value() != insert_token_id.has_value())
    fail(EK_INVALID_ARGUMENT, "delete_token_id and insert_token_id belong together; set both, or neither");
  if (insert_token_id && (insert_token_id == delete_token_id || *insert_token_id == mask_token_id || *delete_token_id == mask_token_id))
    fail(EK_INVALID_ARGUMENT, "delete_token_id is ", *delete_token_id, ", insert_token_id ", *insert_token_id, ", mask_token_id ",
         mask_token_id, "; use three different tokens");
  if (edits() && small_block_length)
    fail(EK_INVALID_ARGUMENT, "editing_threshold and small_block_length are both set; use one of them");
  if (remasking == "entropy" && edits())
    fail(EK_INVALID_ARGUMENT, "editing_threshold compares confidences, remasking entropy does not; use remasking low_confidence");
  if (temperature > 0 && delete_token_id && (top_k.value_or(0) > 0 || top_p.value_or(1) < 1))
    fail(EK_INVALID_ARGUMENT, "top_k and top_p do not go with delete_token_id, whose confidences are those of all tokens; leave "
                              "them out, or set temperature to 0");
  if (draft_steps > 1 && edits())
    fail(EK_INVALID_ARGUMENT, "draft_steps ", draft_steps, " drafts what is committed, editing_threshold replaces it; use 1, or leave "
                              "out editing_threshold");
  if (draft_steps > 1 && mode != "diffusion")
    fail(EK_INVALID_ARGUMENT, "draft_steps ", draft_steps, " drafts denoising steps, mode ", mode, " has none; use 1, or mode diffusion");
  if (mode == "speculative" && temperature > 0)
    fail(EK_INVALID_ARGUMENT, "mode speculative gives the tokens of greedy decoding; set temperature to 0");
}

UnusedOptions BlockOptions::unused() const {
  UnusedOptions all;
  const auto add = [&](std::initializer_list<const char *> names, const std::string &why) {
    for (const char *name : names) all.emplace_back(name, why);
  };
  if (mode != "speculative") add({"ahead", "draft_adapter"}, "in mode " + mode);
  if (mode != "diffusion")
    add({"steps", "threshold", "remasking", "entropy_bound", "small_block_length", "editing_threshold", "max_post_steps",
         "max_block_steps", "delete_token_id", "insert_token_id", "ride", "causal_start"},
        "in mode " + mode + ", which has no denoising steps");
  else if (remasking == "entropy")
    add({"steps", "threshold"}, "with remasking entropy");
  else
    add({"entropy_bound"}, "with remasking " + remasking);
  if (!edits()) add({"max_post_steps", "max_block_steps", "delete_token_id", "insert_token_id"}, "without editing_threshold");
  return all;
}

BlockOptions BlockOptions::of(const OptionMembers &config, const OptionMembers &wishes) {
  BlockOptions own;
  const Given given = read_fields(own.fields(), config, wishes);
  if (!given.has("steps")) own.steps = own.block_length;
  if (!given.by_wishes.count("steps")) own.steps = std::min(own.steps, own.block_length);
  if (!given.has("stop_at_eos")) own.stop_at_eos = !own.eos_token_ids.empty();
  own.check();
  return own;
}

bool BlockOptions::draws() const { return temperature > 0; }

Lengths BlockOptions::lengths(std::int64_t prompt) const {
  // Blocks are decoded whole; what is beyond the answer is dropped.
  const std::int64_t from = align == "position" ? prompt - prompt % block_length : prompt;
  const std::int64_t blocks = rounded_up(prompt + max_new_tokens - from, block_length) / block_length;
  const std::int64_t stop = from + blocks * block_length;
  if (mode == "autoregressive") return {stop - prompt, prompt + max_new_tokens, block_length, 1, max_new_tokens};
  if (mode == "speculative")
    return {stop - prompt + block_length, stop + block_length, block_length, max_new_tokens, 2, 1 + std::min(ahead, block_length)};
  const std::int64_t most = edits() ? max_block_steps : remasking == "entropy" ? block_length : steps;
  return {stop - prompt, stop, block_length, blocks, most, std::max<std::int64_t>(ride ? 2 : 1, draft_steps)};
}

std::string BlockOptions::new_tokens_text(std::int64_t) const {
  return std::to_string(max_new_tokens) + " new tokens";
}

}  // namespace edgekit
