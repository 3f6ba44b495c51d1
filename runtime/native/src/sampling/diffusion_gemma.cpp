#include "sampling/diffusion_gemma.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "error.h"
#include "sampling/portable.h"
#include "sampling/schedule.h"

namespace edgekit {
namespace {

using Ids = std::vector<std::int64_t>;

// What of a canvas is text and stays in a conversation: all up to the first end token.
Ids kept_of(const Ids &ids, const DiffusionGemmaOptions &options) {
  const auto end = std::find_if(ids.begin(), ids.end(),
                                [&](std::int64_t token) { return contains(options.eos_token_ids, token); });
  return {ids.begin(), end == ids.end() ? end : end + 1};
}

}  // namespace

DiffusionGemmaSampler::DiffusionGemmaSampler(SamplerModel about, const Ids &prompt, DiffusionGemmaOptions options,
                                             std::uint64_t seed)
    : Sampler(std::move(about)), options_(std::move(options)), draws_(seed) {
  options_.check();
  check_prompt(prompt);
  if (prompt.empty())
    fail(EK_INVALID_ARGUMENT, "the prompt is empty; this model needs at least its begin-of-sequence token");
  check_option("eos_token_ids", options_.eos_token_ids);
  if (options_.pad_token_id) check_option("pad_token_id", {*options_.pad_token_id});
  if (options_.continue_prefix) {
    waiting_ = model().uncached;
    length_ = model().prefix_length;
  }
  waiting_.insert(waiting_.end(), prompt.begin(), prompt.end());
  length_ += static_cast<std::int64_t>(waiting_.size());
  canvases_ = options_.canvases(length_);
  if (options_.continue_prefix)
    ask_encode(waiting_);
  else
    ask_forget();
}

void DiffusionGemmaSampler::proceed(HeadResult &&answer) {
  switch (ask().kind) {
    case AskKind::forget:
      return ask_encode(waiting_);
    case AskKind::encode:
      ++counters().prefills;
      return begin_canvas();
    case AskKind::denoise:
      return end_step(std::move(answer));
    case AskKind::draft:
      return last_ ? commit() : begin_step();
    default:  // committed
      if (ended_) counters().finish_reason = FinishReason::eos;
      if (ended_ || canvas_index_ == canvases_ || (options_.max_length && length_ >= *options_.max_length))
        return tell_done();
      return ask_encode(waiting_);
  }
}

void DiffusionGemmaSampler::begin_canvas() {
  ++counters().canvases;
  canvas_ = draws_.integers(model().vocabulary, options_.canvas_length);
  soft_.clear();
  history_.clear();
  step_ = 0;
  begin_step();
}

void DiffusionGemmaSampler::begin_step() {
  const std::int64_t steps = options_.max_denoising_steps, remaining = steps - step_;
  // The last step commits its argmax: neither its sample nor its expected embedding is ever looked at.
  const bool last = remaining == 1;
  const GumbelDraw gumbel = draws_.gumbel(1.0f);
  HeadRequest request;
  request.temperature = linear_temperature(remaining, steps, options_.t_min, options_.t_max);
  if (!last) request.gumbel = gumbel;
  request.soft = !last;
  ask_denoise(canvas_, std::move(request), soft_);
}

void DiffusionGemmaSampler::end_step(HeadResult &&answer) {
  ++counters().denoising_steps;
  ++step_;
  std::vector<std::uint8_t> accepted = accept_by_entropy(answer.entropy, options_.entropy_bound);
  const Ids fresh = draws_.integers(model().vocabulary, options_.canvas_length);
  best_ = std::move(answer.argmax);
  last_ = step_ == options_.max_denoising_steps || settled(answer.entropy);
  if (!last_) {
    for (std::size_t i = 0; i < canvas_.size(); ++i) canvas_[i] = accepted[i] != 0 ? answer.sample[i] : fresh[i];
    soft_ = std::move(answer.soft);
  }
  tell_draft(canvas_index_, step_, canvas_index_ * options_.canvas_length, best_, std::move(accepted));
}

bool DiffusionGemmaSampler::settled(const std::vector<float> &entropy) {
  if (!options_.stability_threshold || !options_.confidence_threshold) return false;
  const auto needed = static_cast<std::size_t>(*options_.stability_threshold);
  const bool stable = history_.size() >= needed &&
                      std::all_of(history_.begin(), history_.end(), [&](const Ids &past) { return past == best_; });
  history_.push_back(best_);
  if (history_.size() > needed) history_.pop_front();
  const auto count = static_cast<std::int64_t>(entropy.size());
  return stable && total(entropy.data(), count) / static_cast<double>(count) < *options_.confidence_threshold;
}

void DiffusionGemmaSampler::commit() {
  waiting_ = kept_of(best_, options_);
  ended_ = contains(options_.eos_token_ids, waiting_.back());
  const auto count = static_cast<std::int64_t>(best_.size());
  std::int64_t text = count;
  if (options_.pad_token_id) {
    std::fill(best_.begin() + static_cast<std::ptrdiff_t>(waiting_.size()), best_.end(), *options_.pad_token_id);
    // Tokens per forward are counted as in transformers: everything that is not the padding token.
    text -= std::count(best_.begin(), best_.end(), *options_.pad_token_id);
  }
  counters().committed_tokens += text;
  length_ += count;
  tell_committed(canvas_index_++, std::move(best_), waiting_);
}

}  // namespace edgekit
