#include "sampling/dream.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "sampling/portable.h"
#include "sampling/schedule.h"

namespace edgekit {
namespace {

using Ids = std::vector<std::int64_t>;

// Which of the proposals to take, as indices into them.
Ids choose(const std::vector<double> &confidence, std::int64_t count, const DreamOptions &options, Draws &draws) {
  if (options.alg_temp.value_or(0) == 0) return most_confident(confidence, count);
  // The top n of scores with Gumbel noise are n draws without replacement from their softmax.
  std::vector<double> noised = draws.uniform(static_cast<std::int64_t>(confidence.size()));
  for (std::size_t i = 0; i < noised.size(); ++i) {
    const double gumbel = -portable_log(-portable_log(noised[i]));
    noised[i] = confidence[i] / *options.alg_temp + gumbel;
  }
  return most_confident(noised, count);
}

}  // namespace

DreamSampler::DreamSampler(SamplerModel about, DreamOptions options)
    : Sampler(std::move(about)), options_(std::move(options)) {
  options_.check();
  times_ = timesteps(options_.steps, options_.eps);
  open_.assign(static_cast<std::size_t>(options_.max_new_tokens), 1);
}

void DreamSampler::begin(const Ids &prompt, std::uint64_t of) {
  seed(of);
  check_prompt(prompt);
  canvas_ = {prompt, options_.max_new_tokens, options_.mask_token_id};
  set_lengths(options_.lengths(canvas_.prompt));
  ask_forget();
}

void DreamSampler::proceed(HeadResult &&answer) {
  switch (ask().kind) {
    case AskKind::forget:
      counters().canvases = 1;
      return go_on();
    case AskKind::draft:
      return go_on();
    case AskKind::committed:
      if (std::any_of(ask().ids.begin(), ask().ids.end(),
                      [&](std::int64_t token) { return contains(options_.eos_token_ids, token); }))
        counters().finish_reason = FinishReason::eos;
      return tell_done();
    default:  // a pass
      return take(std::move(answer));
  }
}

void DreamSampler::go_on() {
  const Ids open = positions_of(open_);
  for (; step_ < options_.steps && !end_ && !open.empty(); ++step_) {
    mark();
    if (!find_positions(open)) continue;
    Ids rows = positions_;
    for (std::int64_t &row : rows) row += canvas_.prompt;
    const std::int64_t at_once = rows_within(options_.logits_budget_bytes);
    proposal_.emplace(std::move(rows), options_, model().vocabulary, at_once, draws());
    return ask_denoise(canvas_.ids, proposal_->request());
  }
  mark();
  commit();
}

bool DreamSampler::find_positions(const Ids &open) {
  const float share = transfer_probability(times_, step_);
  if (options_.alg != "origin") {
    count_ = static_cast<std::int64_t>(static_cast<float>(open.size()) * share);
    if (count_ > 0) positions_ = open;  // not of the steps that unmask nothing: there can be millions of them
    return count_ > 0;
  }
  const std::vector<double> uniform = draws().uniform(static_cast<std::int64_t>(open.size()));
  positions_.clear();
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (uniform[i] < static_cast<double>(share)) positions_.push_back(open[i]);
  }
  return !positions_.empty();
}

void DreamSampler::take(HeadResult &&answer) {
  proposal_->take(std::move(answer), options_);
  if (!proposal_->complete()) return ask_again(canvas_.ids, proposal_->request());
  const Proposal proposal = std::move(proposal_->proposal());
  proposal_.reset();
  end_step(proposal);
}

void DreamSampler::end_step(const Proposal &proposal) {
  std::vector<std::uint8_t> accepted(open_.size(), 0);
  const auto settle = [&](std::size_t picked) {
    const auto position = static_cast<std::size_t>(positions_[picked]);
    canvas_.answer()[position] = proposal.tokens[picked];
    open_[position] = 0;
    accepted[position] = 1;
  };
  if (options_.alg == "origin") {
    for (std::size_t i = 0; i < positions_.size(); ++i) settle(i);
  } else {
    for (const std::int64_t picked : choose(proposal.confidence, count_, options_, draws()))
      settle(static_cast<std::size_t>(picked));
  }
  ++counters().denoising_steps;
  ++step_;
  find_end();
  tell_draft(0, step_, 0, canvas_.tokens(), std::move(accepted));
}

void DreamSampler::find_end() {
  if (options_.stop_at_eos) end_ = answer_end(canvas_.answer(), open_, options_.eos_token_ids);
}

void DreamSampler::commit() {
  const std::int64_t *first = canvas_.answer();
  const std::int64_t count = end_.value_or(options_.max_new_tokens);
  counters().committed_tokens = count;
  tell_committed(0, {first, first + count});
}

template <typename Archive, typename Self>
void DreamSampler::fields(Archive &archive, Self &self) {
  const std::int64_t answer = self.options_.max_new_tokens;
  MaskedCanvas::fields(archive, self.canvas_, answer, self.model().vocabulary);
  archive.flags("open positions", self.open_, {answer, answer});
  archive.integer("a step", self.step_, {0, self.options_.steps});
}

void DreamSampler::write(StateWriter &state) const { fields(state, *this); }

void DreamSampler::read(StateReader &state) {
  fields(state, *this);
  find_end();
}

}  // namespace edgekit
