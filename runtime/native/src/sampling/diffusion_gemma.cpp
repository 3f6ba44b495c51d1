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

DiffusionGemmaSampler::DiffusionGemmaSampler(SamplerModel about, DiffusionGemmaOptions options)
    : Sampler(std::move(about)), options_(std::move(options)) {
  options_.check();
  canvas_.assign(static_cast<std::size_t>(options_.canvas_length), 0);
  best_ = canvas_;
}

void DiffusionGemmaSampler::begin(const Ids &prompt, std::uint64_t of) {
  seed(of);
  check_prompt(prompt);
  if (prompt.empty())
    fail(EK_INVALID_PROMPT, "the prompt is empty; this model needs at least its begin-of-sequence token");
  if (options_.continue_prefix) {
    waiting_ = model().uncached;
    length_ = model().prefix_length;
  }
  waiting_.insert(waiting_.end(), prompt.begin(), prompt.end());
  length_ += static_cast<std::int64_t>(waiting_.size());
  canvases_ = options_.canvases(length_);
  set_lengths(options_.lengths(length_));
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
      return go_on();
    default:  // committed
      return end_canvas();
  }
}

void DiffusionGemmaSampler::begin_canvas() {
  ++counters().canvases;
  canvas_ = draws().integers(model().vocabulary, options_.canvas_length);
  soft_.clear();
  history_.clear();
  step_ = 0;
  last_ = false;
  go_on();
}

void DiffusionGemmaSampler::begin_step() {
  const std::int64_t steps = options_.steps, remaining = steps - step_;
  // The last step commits its argmax: neither its sample nor its expected embedding is ever looked at.
  const bool last = remaining == 1;
  const GumbelDraw gumbel = draws().gumbel(1.0f);
  HeadRequest request;
  request.temperature = linear_temperature(remaining, steps, options_.t_min, options_.t_max);
  if (!last) request.gumbel = gumbel;
  request.soft = !last && model().hidden_size > 0;
  ask_denoise(canvas_, std::move(request), soft_);
}

void DiffusionGemmaSampler::end_step(HeadResult &&answer) {
  ++counters().denoising_steps;
  ++step_;
  std::vector<std::uint8_t> accepted = accept_by_entropy(answer.entropy, options_.entropy_bound);
  const Ids fresh = draws().integers(model().vocabulary, options_.canvas_length);
  best_ = std::move(answer.argmax);
  last_ = step_ == options_.steps || settled(answer.entropy);
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
  Ids kept = kept_of(best_, options_), tokens = best_;
  const auto count = static_cast<std::int64_t>(tokens.size());
  std::int64_t text = count;
  if (options_.pad_token_id) {
    std::fill(tokens.begin() + static_cast<std::ptrdiff_t>(kept.size()), tokens.end(), *options_.pad_token_id);
    // Tokens per forward are counted as in transformers: everything that is not the padding token.
    text -= std::count(tokens.begin(), tokens.end(), *options_.pad_token_id);
  }
  counters().committed_tokens += text;
  tell_committed(canvas_index_, std::move(tokens), std::move(kept));
}

void DiffusionGemmaSampler::end_canvas() {
  waiting_ = ask().kept;
  length_ += static_cast<std::int64_t>(ask().ids.size());
  ++canvas_index_;
  const bool ended = contains(options_.eos_token_ids, waiting_.back());
  if (ended) counters().finish_reason = FinishReason::eos;
  if (ended || canvas_index_ == canvases_ || (options_.max_length && length_ >= *options_.max_length))
    return tell_done();
  ask_encode(waiting_);
}

void DiffusionGemmaSampler::ask_waiting() { ask_encode(waiting_); }

void DiffusionGemmaSampler::go_on() {
  mark();
  last_ ? commit() : begin_step();
}

template <typename Archive, typename Self>
void DiffusionGemmaSampler::fields(Archive &archive, Self &self) {
  const std::int64_t length = self.options_.canvas_length;
  const StateLimits tokens{0, self.model().vocabulary - 1}, canvas{length, length};
  archive.integers("text that waits", self.waiting_, {1, kMostTokens}, tokens);
  archive.integer("a length of the text", self.length_, {0, 4 * kMostTokens});
  archive.integer("a number of canvases", self.canvases_, {1, kMostTokens});
  archive.integer("a canvas", self.canvas_index_, {0, self.canvases_ - 1});
  archive.integers("the tokens of a canvas", self.canvas_, canvas, tokens);
  archive.floats("a soft embedding", self.soft_, {0, length * self.model().hidden_size});
  archive.integer("a step", self.step_, {0, self.options_.steps});
  archive.flag("a last step", self.last_);
  archive.integers("the best tokens", self.best_, canvas, tokens);
}

void DiffusionGemmaSampler::write(StateWriter &state) const {
  fields(state, *this);
  const std::int64_t length = options_.canvas_length;
  state.integer("a number of drafts", static_cast<std::int64_t>(history_.size()), {0, step_});
  for (const Ids &draft : history_) state.integers("a draft", draft, {length, length}, {0, model().vocabulary - 1});
}

void DiffusionGemmaSampler::read(StateReader &state) {
  fields(state, *this);
  const std::int64_t length = options_.canvas_length;
  std::int64_t drafts = 0;
  state.integer("a number of drafts", drafts, {0, std::min(step_, options_.stability_threshold.value_or(0))});
  history_.clear();
  for (std::int64_t i = 0; i < drafts; ++i)
    state.integers("a draft", history_.emplace_back(), {length, length}, {0, model().vocabulary - 1});
  const auto soft = static_cast<std::int64_t>(soft_.size());
  check_state(soft == 0 || soft == length * model().hidden_size, "a soft embedding");
  check_state(last_ || step_ < options_.steps, "a step");
}

}  // namespace edgekit
