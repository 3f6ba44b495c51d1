#include "sampling/dream.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "sampling/portable.h"
#include "sampling/roles.h"
#include "sampling/schedule.h"

namespace edgekit {
namespace {

using Ids = std::vector<std::int64_t>;

// So many of the proposals, as indices into them.
Ids scheduled(const Proposal &proposal, std::int64_t count, const DreamOptions &options, Draws &draws) {
  const std::vector<double> &confidence = proposal.confidence;
  if (options.alg_temp.value_or(0) == 0) return in_logic_order(proposal.roles, confidence, count);
  // The top n of scores with Gumbel noise are n draws without replacement from their softmax.
  std::vector<double> noised = draws.uniform(static_cast<std::int64_t>(confidence.size()));
  for (std::size_t i = 0; i < noised.size(); ++i) {
    const double gumbel = -portable_log(-portable_log(noised[i]));
    noised[i] = confidence[i] / *options.alg_temp + gumbel;
  }
  return in_logic_order(proposal.roles, noised, count);
}

}  // namespace

DreamSampler::DreamSampler(SamplerModel about, DreamOptions options)
    : Sampler(std::move(about)), options_(std::move(options)) {
  options_.check();
  options_.draft_steps = draft_ahead(options_.draft_steps);
  times_ = timesteps(std::max<std::int64_t>(1, options_.steps / options_.blocks()), options_.eps);
  given_open_ = MaskedCanvas::open(options_.canvas, options_.max_new_tokens, options_.mask_token_id);
  open_ = given_open_;
  if (options_.rules.persistence) streaks_ = Streaks(options_.max_new_tokens);
}

void DreamSampler::begin(const Ids &prompt, std::uint64_t of) {
  seed(of);
  check_prompt(prompt);
  canvas_ = {prompt, options_.canvas, options_.max_new_tokens, options_.mask_token_id};
  set_lengths(options_.lengths(canvas_.prompt));
  ask_forget();
}

void DreamSampler::proceed(HeadResult &&answer) {
  switch (ask().kind) {
    case AskKind::forget:
      counters().canvases = 1;
      return go_on();
    case AskKind::draft:
    case AskKind::crop:
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

Ids DreamSampler::open_in_block() const {
  Ids open = positions_of(open_);
  open.erase(std::lower_bound(open.begin(), open.end(), block_stop()), open.end());
  return open;
}

void DreamSampler::go_on() {
  find_end();
  for (;; ++block_, step_ = 0) {
    const Ids open = open_in_block();
    for (; step_ < options_.most_steps() && !end_ && !open.empty(); ++step_) {
      mark();
      if (options_.cache == "delayed" && is_stale(options_.refresh(), static_cast<std::int64_t>(canvas_.ids.size())))
        return ask_crop(0);
      if (!find_positions(open)) continue;
      whole_ = !holds_cache() || (settles_ && options_.cache == "dual");
      Ids rows = positions_;
      for (std::int64_t &row : rows) row += canvas_.prompt;
      const std::int64_t at_once = rows_within(options_.logits_budget_bytes);
      proposal_.emplace(std::move(rows), options_, model().vocabulary, at_once, draws());
      return ask_proposal();
    }
    mark();
    if (holds_cache()) return ask_crop(0);  // what was kept was for this block alone
    if (end_ || block_ + 1 == options_.blocks()) return commit();
  }
}

void DreamSampler::ask_proposal() {
  if (options_.cache == "delayed") return ask_delayed(canvas_.ids, canvas_.prompt, open_, true, proposal_->request());
  ask_block(options_.cache, whole_, canvas_.ids, canvas_.prompt + block_start(), canvas_.prompt + block_stop(),
            proposal_->request());
}

bool DreamSampler::find_positions(const Ids &open) {
  settles_ = is_last_step();
  // What is behind the block is looked at to see whether the whole answer is settled.
  positions_ = settles_ || options_.rules.early_commit ? positions_of(open_) : open;
  begins_ = options_.keeps_blocks() && !holds_cache() && !settles_ && open.front() == block_start() &&
            options_.most_steps() > 1;
  if (begins_ && !options_.rules.early_commit) positions_.resize(1);
  if (settles_ || begins_ || options_.rules.replace_schedule()) return true;
  const float share = transfer_probability(times_, step_);
  if (options_.alg != "origin") {
    count_ = static_cast<std::int64_t>(static_cast<float>(open.size()) * share);
    return count_ > 0;  // none of the steps that unmask nothing: there can be millions of them
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
  if (!proposal_->complete()) {
    if (options_.asks_again()) return ask_again(canvas_.ids, proposal_->request());
    return ask_proposal();  // the pass again
  }
  const Proposal proposal = std::move(proposal_->proposal());
  proposal_.reset();
  end_step(proposal);
}

Ids DreamSampler::choose(const Proposal &proposal) {
  const AcceptanceRules &rules = options_.rules;
  const auto all = static_cast<std::int64_t>(positions_.size());
  if (options_.alg == "origin") return most_confident(proposal.confidence, all);
  Ids streaks;
  if (rules.persistence) {
    streaks_.add(positions_, proposal.best, proposal.best_probability, rules.stability);
    for (const std::int64_t position : positions_) streaks.push_back(streaks_[position]);
  }
  if (settles_ || (rules.early_commit && settled(proposal.margin, *rules.early_commit)))
    return most_confident(proposal.confidence, all);
  if (begins_) return {0};
  const auto stop = std::lower_bound(positions_.begin(), positions_.end(), block_stop());
  const Proposal own = proposal.first(stop - positions_.begin());
  if (rules.replace_schedule()) return edgekit::accepted(own, streaks, rules);
  return scheduled(own, count_, options_, draws());
}

void DreamSampler::end_step(const Proposal &proposal) {
  std::vector<std::uint8_t> accepted(open_.size(), 0);
  for (const std::int64_t picked : choose(proposal)) {
    const auto position = static_cast<std::size_t>(positions_[static_cast<std::size_t>(picked)]);
    canvas_.answer()[position] = proposal.tokens[static_cast<std::size_t>(picked)];
    open_[position] = 0;
    accepted[position] = 1;
  }
  ++counters().denoising_steps;
  ++step_;
  tell_draft(0, block_ * options_.most_steps() + step_, 0, canvas_.tokens(), std::move(accepted));
}

void DreamSampler::find_end() {
  if (!options_.stop_at_eos) return;
  end_ = answer_end(canvas_.answer(), open_, options_.eos_token_ids,
                    MaskedCanvas::ends_from(options_.canvas, options_.mask_token_id, options_.eos_token_ids));
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
  archive.integer("a block", self.block_, {0, self.options_.blocks() - 1});
  archive.integer("a step", self.step_, {0, self.options_.most_steps()});
  if (self.options_.rules.persistence)
    Streaks::fields(archive, self.streaks_, answer, self.model().vocabulary);
}

void DreamSampler::write(StateWriter &state) const { fields(state, *this); }

void DreamSampler::read(StateReader &state) {
  fields(state, *this);
  for (std::size_t i = 0; i < open_.size(); ++i) check_state(open_[i] <= given_open_[i], "open positions");
}

}  // namespace edgekit
