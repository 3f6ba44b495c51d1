#include "sampling/llada.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "sampling/schedule.h"

namespace edgekit {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr double kLast = -std::numeric_limits<double>::infinity();

// Of the confidences -(1 - p) / p; the last ones stay below every probability.
std::vector<double> probabilities(std::vector<double> confidence) {
  for (double &value : confidence) value = value == kLast ? kLast : 1 / (1 - value);
  return confidence;
}

// Which of the open positions to commit, as indices into them.
Ids choose(Proposal proposal, std::int64_t step, const LladaOptions &options, const Ids &end_ids) {
  std::vector<double> &confidence = proposal.confidence;
  if (options.confidence_eos_eot_inf) {
    for (std::size_t i = 0; i < confidence.size(); ++i) {
      if (contains(end_ids, proposal.tokens[i])) confidence[i] = kLast;
    }
  }
  std::int64_t count;
  if (options.threshold)
    count = count_above_threshold(probabilities(confidence), *options.threshold);
  else if (options.factor)
    count = count_by_factor(probabilities(confidence), *options.factor);
  else
    count = transfer_count(options.block_length, options.steps / options.blocks(), step);
  return most_confident(std::move(confidence), count);
}

}  // namespace

LladaSampler::LladaSampler(SamplerModel about, LladaOptions options)
    : Sampler(std::move(about)), options_(std::move(options)), end_ids_(options_.end_ids()) {
  options_.check();
  open_.assign(static_cast<std::size_t>(options_.block_length), 1);
}

void LladaSampler::begin(const Ids &prompt, std::uint64_t of) {
  seed(of);
  check_prompt(prompt);
  canvas_ = {prompt, options_.max_new_tokens, options_.mask_token_id};
  set_lengths(options_.lengths(canvas_.prompt));
  ask_forget();
}

void LladaSampler::proceed(HeadResult &&answer) {
  switch (ask().kind) {
    case AskKind::forget:
      return begin_block();
    case AskKind::draft:
      return go_on();
    case AskKind::committed:
      ended_ = ended_ || std::any_of(ask().ids.begin(), ask().ids.end(),
                                     [&](std::int64_t token) { return contains(end_ids_, token); });
      if (end_ || ++block_ == options_.blocks()) {
        counters().finish_reason = ended_ ? FinishReason::eos : FinishReason::length;
        return tell_done();
      }
      return begin_block();
    default:  // a pass
      return take(std::move(answer));
  }
}

void LladaSampler::go_on() {
  mark();
  end_ || positions_of(open_).empty() ? commit() : begin_step();
}

void LladaSampler::begin_block() {
  ++counters().canvases;
  open_.assign(static_cast<std::size_t>(options_.block_length), 1);
  step_ = 0;
  go_on();
}

void LladaSampler::begin_step() {
  positions_ = positions_of(open_);
  gumbel_.reset();
  if (options_.temperature > 0) gumbel_ = draws().gumbel(static_cast<float>(options_.temperature));
  Ids rows = positions_;
  for (std::int64_t &row : rows) row += canvas_.prompt + block_start();
  if (options_.cfg_scale > 0 || options_.logits_eos_inf) {
    scores_.emplace(std::move(rows), rows_within(options_.logits_budget_bytes), model().vocabulary);
    return ask_scores();
  }
  HeadRequest request;
  request.all_rows = false;
  request.rows = std::move(rows);
  request.gumbel = gumbel_;
  ask_denoise(canvas_.ids, std::move(request));
}

void LladaSampler::take(HeadResult &&answer) {
  if (scores_) {
    scores_->take(std::move(answer.logits), options_, gumbel_);
    if (!scores_->complete()) return ask_scores();
    Proposal proposal = std::move(scores_->proposal());
    scores_.reset();
    return end_step(std::move(proposal));
  }
  Proposal proposal;
  for (std::size_t r = 0; r < positions_.size(); ++r) {
    const bool other = gumbel_ && answer.sample[r] != answer.argmax[r];
    const double odds = other ? 1 / static_cast<double>(answer.sample_prob[r]) - 1  // float32 is enough below 1/2
                              : static_cast<double>(answer.others[r]);
    proposal.confidence.push_back(llada_confidence(odds));
  }
  proposal.tokens = std::move(gumbel_ ? answer.sample : answer.argmax);
  end_step(std::move(proposal));
}

void LladaSampler::ask_scores() {
  if (scores_->pass() == LladaScores::Pass::again) return ask_again(canvas_.ids, scores_->request());
  Ids ids = canvas_.ids;
  if (scores_->pass() == LladaScores::Pass::unconditional)
    std::fill(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(canvas_.prompt), options_.mask_token_id);
  ask_denoise(std::move(ids), scores_->request());
}

void LladaSampler::end_step(Proposal proposal) {
  if (options_.remasking == "random") {
    const std::vector<double> uniform = draws().uniform(static_cast<std::int64_t>(positions_.size()));
    for (std::size_t i = 0; i < uniform.size(); ++i)
      proposal.confidence[i] = static_cast<double>(static_cast<float>(uniform[i]));
  }
  ++counters().denoising_steps;
  const std::int64_t start = block_start();
  std::vector<std::uint8_t> accepted(static_cast<std::size_t>(options_.max_new_tokens), 0);
  for (const std::int64_t picked : choose(proposal, step_, options_, end_ids_)) {
    const std::int64_t position = positions_[static_cast<std::size_t>(picked)];
    canvas_.answer()[start + position] = proposal.tokens[static_cast<std::size_t>(picked)];
    open_[static_cast<std::size_t>(position)] = 0;
    accepted[static_cast<std::size_t>(start + position)] = 1;
  }
  ++step_;
  find_end();
  tell_draft(block_, step_, 0, canvas_.tokens(), std::move(accepted));
}

void LladaSampler::find_end() {
  if (options_.stop_at_eos) end_ = answer_end(canvas_.answer() + block_start(), open_, end_ids_);
}

void LladaSampler::commit() {
  const std::int64_t *first = canvas_.answer() + block_start();
  const std::int64_t count = end_.value_or(options_.block_length);
  counters().committed_tokens += count;
  tell_committed(block_, {first, first + count});
}

template <typename Archive, typename Self>
void LladaSampler::fields(Archive &archive, Self &self) {
  const LladaOptions &options = self.options_;
  MaskedCanvas::fields(archive, self.canvas_, options.max_new_tokens, self.model().vocabulary);
  archive.flag("an end", self.ended_);
  archive.integer("a block", self.block_, {0, options.blocks() - 1});
  archive.integer("a step", self.step_, {0, options.block_length});
  archive.flags("open positions", self.open_, {options.block_length, options.block_length});
}

void LladaSampler::write(StateWriter &state) const { fields(state, *this); }

void LladaSampler::read(StateReader &state) {
  fields(state, *this);
  const auto open = static_cast<std::int64_t>(positions_of(open_).size());
  const bool scheduled = !options_.threshold && !options_.factor;
  std::int64_t left = options_.block_length;
  for (std::int64_t step = 0; step < step_; ++step)
    left -= scheduled ? transfer_count(options_.block_length, options_.steps / options_.blocks(), step) : 1;
  // The schedule ends with the last open position, and any other step takes one at least.
  check_state(scheduled ? open == left : open <= left, "a step");
  find_end();
}

}  // namespace edgekit
