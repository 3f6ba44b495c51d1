#include "sampling/diffusion_gemma.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>

#include "error.h"
#include "sampling/portable.h"
#include "sampling/schedule.h"

namespace edgekit {
namespace {

using Ids = std::vector<std::int64_t>;

// What of a canvas is text and stays in a conversation: all up to the first end token, from place `from` on.
Ids kept_of(const Ids &ids, std::int64_t from, const DiffusionGemmaOptions &options) {
  const auto end = std::find_if(ids.begin() + static_cast<std::ptrdiff_t>(from), ids.end(),
                                [&](std::int64_t token) { return contains(options.eos_token_ids, token); });
  return {ids.begin(), end == ids.end() ? end : end + 1};
}

double sum(const std::vector<float> &values) {
  return total(values.data(), static_cast<std::int64_t>(values.size()));
}

// 0 of nothing.
double mean(const std::vector<float> &values) {
  return values.empty() ? 0 : sum(values) / static_cast<double>(values.size());
}

}  // namespace

DiffusionGemmaSampler::DiffusionGemmaSampler(SamplerModel about, DiffusionGemmaOptions options)
    : Sampler(std::move(about)), options_(std::move(options)) {
  options_.check();
  canvas_.assign(static_cast<std::size_t>(options_.canvas_length), 0);
  best_ = canvas_;
  mark_fixed();
  if (options_.persistence) streaks_ = Streaks(options_.canvas_length);
}

void DiffusionGemmaSampler::mark_fixed() {
  fixed_.assign(canvas_.size(), 0);
  if (!has_given()) return;
  for (const std::int64_t place : options_.fixed) fixed_[static_cast<std::size_t>(place)] = 1;
}

void DiffusionGemmaSampler::begin(const Ids &prompt, std::uint64_t of) {
  seed(of);
  check_prompt(prompt);
  if (prompt.empty())
    fail(EK_INVALID_PROMPT, "the prompt is empty; this model needs at least its begin-of-sequence token");
  auto [waiting, length] = beginning(prompt, options_.continue_prefix);
  waiting_ = std::move(waiting);
  length_ = length;
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
  if (has_given()) {
    for (std::size_t i = 0; i < canvas_.size(); ++i) canvas_[i] = options_.canvas[i] < 0 ? canvas_[i] : options_.canvas[i];
  }
  mark_fixed();
  if (options_.persistence) streaks_ = Streaks(options_.canvas_length);
  soft_.clear();
  history_.clear();
  step_ = 0;
  last_ = verifies_ = false;
  go_on();
}

void DiffusionGemmaSampler::begin_step() {
  const std::int64_t steps = options_.steps, remaining = steps - step_;
  // The last step commits its argmax: neither its sample nor its expected embedding is ever looked at.
  ends_ = remaining == 1 || is_last_step();
  const GumbelDraw gumbel = draws().gumbel(1.0f);
  HeadRequest request;
  request.temperature = linear_temperature(remaining, steps, options_.t_min, options_.t_max);
  if (!ends_) request.gumbel = gumbel;
  request.soft = !ends_ && model().hidden_size > 0;
  ask_denoise(canvas_, std::move(request), soft_);
}

void DiffusionGemmaSampler::end_step(HeadResult &&answer) {
  ++counters().denoising_steps;
  ++step_;
  std::vector<std::uint8_t> accepted = this->accepted(answer);
  const Ids fresh = draws().integers(model().vocabulary, options_.canvas_length);
  best_ = answer.argmax;
  put_back(best_);
  const bool verified = verifies_ && best_ == canvas_;
  const bool settled = is_settled(answer.entropy);
  last_ = ends_ || verified || settled;
  if (!last_) {
    show_next(answer, accepted, fresh);
    soft_ = std::move(answer.soft);
  }
  tell_draft(canvas_index_, step_, canvas_index_ * options_.canvas_length, best_, std::move(accepted));
}

std::vector<std::uint8_t> DiffusionGemmaSampler::accepted(HeadResult &answer) {
  const std::vector<std::uint8_t> by_entropy = accept_by_entropy(open_of(answer.entropy), options_.entropy_bound);
  std::vector<std::uint8_t> accepted(fixed_.size(), 1);
  auto next = by_entropy.begin();
  for (std::size_t i = 0; i < accepted.size(); ++i) {
    if (fixed_[i] == 0) accepted[i] = *next++;
  }
  if (!options_.persistence) return accepted;
  Ids places(accepted.size());
  std::iota(places.begin(), places.end(), 0);
  streaks_.add(places, answer.argmax, std::vector<double>(places.size()), std::nullopt);
  for (std::size_t i = 0; i < accepted.size(); ++i) {
    if (streaks_[places[i]] < *options_.persistence ||
        static_cast<double>(answer.entropy[i]) > options_.persistent_entropy)
      continue;
    accepted[i] = 1;
    if (!answer.sample.empty()) answer.sample[i] = answer.argmax[i];
  }
  return accepted;
}

void DiffusionGemmaSampler::show_next(const HeadResult &answer, const std::vector<std::uint8_t> &accepted,
                                      const Ids &fresh) {
  const bool refused = verifies_;
  verifies_ = options_.verify_bound && !refused && sum(open_of(answer.entropy)) <= *options_.verify_bound;
  for (std::size_t i = 0; i < canvas_.size(); ++i) {
    if (verifies_)
      canvas_[i] = best_[i];
    else if (refused)
      canvas_[i] = best_[i] == canvas_[i] ? best_[i] : fresh[i];
    else
      canvas_[i] = accepted[i] != 0 ? answer.sample[i] : fresh[i];
  }
  put_back(canvas_);
}

bool DiffusionGemmaSampler::is_settled(const std::vector<float> &entropy) {
  if (!options_.stability_threshold || !options_.confidence_threshold) return false;
  const auto needed = static_cast<std::size_t>(*options_.stability_threshold);
  const bool stable = history_.size() >= needed &&
                      std::all_of(history_.begin(), history_.end(), [&](const Ids &past) { return past == best_; });
  history_.push_back(best_);
  if (history_.size() > needed) history_.pop_front();
  return stable && mean(open_of(entropy)) < *options_.confidence_threshold;
}

std::vector<float> DiffusionGemmaSampler::open_of(const std::vector<float> &values) const {
  std::vector<float> open;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (fixed_[i] == 0) open.push_back(values[i]);
  }
  return open;
}

void DiffusionGemmaSampler::put_back(Ids &ids) const {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (fixed_[i] != 0) ids[i] = options_.canvas[i];
  }
}

void DiffusionGemmaSampler::commit() {
  // An end token before fixed text ends nothing.
  std::int64_t from = 0;
  for (std::size_t i = 0; i < fixed_.size(); ++i) {
    if (fixed_[i] != 0 && !contains(options_.eos_token_ids, best_[i]) && best_[i] != options_.pad_token_id)
      from = static_cast<std::int64_t>(i);
  }
  Ids kept = kept_of(best_, from, options_), tokens = best_;
  const auto count = static_cast<std::int64_t>(tokens.size());
  std::int64_t text = count;
  if (options_.pad_token_id) {
    std::fill(tokens.begin() + static_cast<std::ptrdiff_t>(kept.size()), tokens.end(), *options_.pad_token_id);
    // Tokens per forward are counted as in transformers: everything that is not the padding token.
    text -= std::count(tokens.begin(), tokens.end(), *options_.pad_token_id);
  }
  counters().committed_tokens += text;
  const std::int64_t padding = count - static_cast<std::int64_t>(kept.size());
  tell_committed(canvas_index_, std::move(tokens), std::move(kept), padding);
}

void DiffusionGemmaSampler::end_canvas() {
  waiting_ = ask().kept;
  length_ += static_cast<std::int64_t>(ask().ids.size());
  ++canvas_index_;
  const bool ended = contains(options_.eos_token_ids, waiting_.back());
  if (ended) counters().finish_reason = FinishReason::eos;
  if (ended || is_late() || canvas_index_ == canvases_ || (options_.max_length && length_ >= *options_.max_length))
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
  if (self.options_.verify_bound) archive.flag("a verification", self.verifies_);
  if (self.options_.persistence) Streaks::fields(archive, self.streaks_, length, self.model().vocabulary);
}

void DiffusionGemmaSampler::write(StateWriter &state) const {
  fields(state, *this);
  const std::int64_t length = options_.canvas_length;
  state.integer("a number of drafts", static_cast<std::int64_t>(history_.size()), {0, step_});
  for (const Ids &draft : history_) state.integers("a draft", draft, {length, length}, {0, model().vocabulary - 1});
}

void DiffusionGemmaSampler::read(StateReader &state) {
  fields(state, *this);
  mark_fixed();
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
