#include "sampling/llada.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "sampling/roles.h"
#include "sampling/schedule.h"

namespace edgekit {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr double kLast = -std::numeric_limits<double>::infinity();

using Flags = std::vector<std::uint8_t>;

// A part of the flags of an answer.
Flags part_of(const Flags &flags, std::int64_t start, std::int64_t count) {
  const auto first = flags.begin() + static_cast<std::ptrdiff_t>(start);
  return {first, first + static_cast<std::ptrdiff_t>(count)};
}

std::int64_t count_of(const Flags &flags) { return std::count(flags.begin(), flags.end(), std::uint8_t{1}); }

}  // namespace

LladaSampler::LladaSampler(SamplerModel about, LladaOptions options)
    : Sampler(std::move(about)), options_(std::move(options)), end_ids_(options_.end_ids()) {
  options_.check();
  options_.draft_steps = draft_ahead(options_.draft_steps);
  given_open_ = MaskedCanvas::open(options_.canvas, options_.max_new_tokens, options_.mask_token_id);
  open_ = given_open_;
  stop_ = options_.max_new_tokens;
  ends_from_ = MaskedCanvas::ends_from(options_.canvas, options_.mask_token_id, end_ids_);
  if (options_.rules.persistence) streaks_ = Streaks(options_.max_new_tokens);
}

void LladaSampler::begin(const Ids &prompt, std::uint64_t of) {
  seed(of);
  check_prompt(prompt);
  canvas_ = {prompt, options_.canvas, options_.max_new_tokens, options_.mask_token_id};
  set_lengths(options_.lengths(canvas_.prompt));
  ask_forget();
}

void LladaSampler::proceed(HeadResult &&answer) {
  switch (ask().kind) {
    case AskKind::forget:
      return begin_block();
    case AskKind::draft:
    case AskKind::crop:
      return go_on();
    case AskKind::committed:
      ended_ = ended_ || std::any_of(ask().ids.begin(), ask().ids.end(),
                                     [&](std::int64_t token) { return contains(end_ids_, token); });
      if (end_ || (block_ + 1) * options_.block_length == stop_) {
        counters().finish_reason = ended_ ? FinishReason::eos : FinishReason::length;
        return tell_done();
      }
      ++block_;
      return begin_block();
    default:  // a pass
      return take(std::move(answer));
  }
}

void LladaSampler::go_on() {
  mark();
  find_end();
  const bool done = end_ || !is_block_open();
  // What was kept was for this block alone, and for so many steps.
  const bool stale = options_.cache == "delayed" && is_stale(options_.refresh(), canvas_.prompt + stop_);
  if ((done || step_ == 0 || stale) && holds_cache()) return ask_crop(0);
  done ? commit() : begin_step();
}

Ids LladaSampler::shown() const {
  return {canvas_.ids.begin(), canvas_.ids.begin() + static_cast<std::ptrdiff_t>(canvas_.prompt + stop_)};
}

bool LladaSampler::is_block_open() const {
  return count_of(part_of(open_, block_start(), options_.block_length)) > 0;
}

void LladaSampler::begin_block() {
  ++counters().canvases;
  step_ = 0;
  go_on();
}

void LladaSampler::begin_step() {
  const std::int64_t stop = block_start() + options_.block_length;
  positions_ = positions_of(open_);
  settles_ = is_last_step(options_.cfg_scale > 0 ? 2 : 1);
  // What is behind the block is looked at to see whether the whole answer is settled, or where it ends.
  const bool everything = options_.rules.early_commit || settles_ || (options_.trim && step_ == 0);
  positions_.erase(std::lower_bound(positions_.begin(), positions_.end(), everything ? stop_ : stop), positions_.end());
  gumbel_.reset();
  if (options_.temperature > 0) gumbel_ = draws().gumbel(static_cast<float>(options_.temperature));
  Ids rows = positions_;
  for (std::int64_t &row : rows) row += canvas_.prompt;
  if (options_.cfg_scale > 0 || options_.logits_eos_inf) {
    scores_.emplace(std::move(rows), rows_within(options_.logits_budget_bytes), model().vocabulary);
    return ask_scores();
  }
  HeadRequest request;
  request.all_rows = false;
  request.rows = std::move(rows);
  request.gumbel = gumbel_;
  if (options_.rules.need_margin()) request.top_k = std::min<std::int64_t>(2, model().vocabulary);
  request.roles = options_.order == "logic";
  if (options_.cache == "delayed") return ask_delayed(shown(), canvas_.prompt, open_, false, std::move(request));
  // What settles the whole answer computes all of it.
  const bool whole = step_ == 0 || (settles_ && options_.cache == "dual");
  ask_block(options_.cache, whole, shown(), canvas_.prompt + block_start(), canvas_.prompt + stop, std::move(request));
}

void LladaSampler::take(HeadResult &&answer) {
  if (scores_) {
    scores_->take(std::move(answer), options_, gumbel_);
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
    if (options_.rules.any()) proposal.probability.push_back(llada_probability(proposal.confidence.back()));
  }
  if (options_.rules.any()) add_evidence(answer, proposal);
  if (options_.order == "logic") proposal.roles = likeliest_roles(answer.roles);
  proposal.tokens = std::move(gumbel_ ? answer.sample : answer.argmax);
  end_step(std::move(proposal));
}

void LladaSampler::ask_scores() {
  HeadRequest request = scores_->request();
  request.roles = options_.order == "logic" && scores_->pass() != LladaScores::Pass::unconditional;
  if (scores_->pass() == LladaScores::Pass::again) return ask_again(shown(), std::move(request));
  Ids ids = shown();
  if (scores_->pass() == LladaScores::Pass::unconditional)
    std::fill(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(canvas_.prompt), options_.mask_token_id);
  ask_denoise(std::move(ids), std::move(request));
}

// Later steps do without the blocks behind the first end that is predicted; the answer goes no further, even if that end does
// not come.
void LladaSampler::trim(const Proposal &proposal) {
  for (std::size_t i = 0; i < positions_.size(); ++i) {
    const bool ends = positions_[i] >= ends_from_ && contains(end_ids_, proposal.tokens[i]);
    if (!ends || llada_probability(proposal.confidence[i]) < *options_.trim) continue;
    stop_ = std::min(stop_, (positions_[i] / options_.block_length + 1) * options_.block_length);
    return;
  }
}

void LladaSampler::end_step(Proposal proposal) {
  if (options_.trim && step_ == 0) trim(proposal);
  if (options_.remasking == "random") {
    const std::vector<double> uniform = draws().uniform(static_cast<std::int64_t>(positions_.size()));
    for (std::size_t i = 0; i < uniform.size(); ++i)
      proposal.confidence[i] = static_cast<double>(static_cast<float>(uniform[i]));
  }
  if (options_.confidence_eos_eot_inf) {
    for (std::size_t i = 0; i < proposal.tokens.size(); ++i) {
      if (!contains(end_ids_, proposal.tokens[i])) continue;
      proposal.confidence[i] = kLast;
      if (options_.rules.any()) proposal.probability[i] = kLast;
    }
  }
  ++counters().denoising_steps;
  Flags accepted(static_cast<std::size_t>(options_.max_new_tokens), 0);
  for (const std::int64_t picked : choose(proposal)) {
    const auto position = static_cast<std::size_t>(positions_[static_cast<std::size_t>(picked)]);
    canvas_.answer()[position] = proposal.tokens[static_cast<std::size_t>(picked)];
    open_[position] = 0;
    accepted[position] = 1;
  }
  ++step_;
  tell_draft(block_, step_, 0, canvas_.tokens(), std::move(accepted));
}

Ids LladaSampler::choose(const Proposal &proposal) {
  const AcceptanceRules &rules = options_.rules;
  Ids streaks;
  if (rules.persistence) {
    streaks_.add(positions_, proposal.best, proposal.best_probability, rules.stability);
    for (const std::int64_t position : positions_) streaks.push_back(streaks_[position]);
  }
  if (settles_ || (rules.early_commit && settled(proposal.margin, *rules.early_commit)))
    return most_confident(proposal.confidence, static_cast<std::int64_t>(positions_.size()));
  const auto stop = std::lower_bound(positions_.begin(), positions_.end(), block_start() + options_.block_length);
  const Proposal own = proposal.first(stop - positions_.begin());
  if (rules.replace_schedule()) return edgekit::accepted(own, streaks, rules);
  const std::int64_t masked = count_of(part_of(given_open_, block_start(), options_.block_length));
  return in_logic_order(own.roles, own.confidence, transfer_count(masked, options_.steps / options_.blocks(), step_));
}

void LladaSampler::find_end() {
  end_.reset();
  if (!options_.stop_at_eos) return;
  end_ = answer_end(canvas_.answer() + block_start(), part_of(open_, block_start(), options_.block_length), end_ids_,
                    ends_from_ - block_start());
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
  const std::int64_t answer = options.max_new_tokens, vocabulary = self.model().vocabulary;
  MaskedCanvas::fields(archive, self.canvas_, answer, vocabulary);
  archive.flag("an end", self.ended_);
  archive.integer("a block", self.block_, {0, options.blocks() - 1});
  archive.integer("a length of the answer", self.stop_, {options.block_length, answer});
  archive.integer("a step", self.step_, {0, options.block_length});
  archive.flags("open positions", self.open_, {answer, answer});
  if (options.rules.persistence) Streaks::fields(archive, self.streaks_, answer, vocabulary);
}

void LladaSampler::write(StateWriter &state) const { fields(state, *this); }

void LladaSampler::read(StateReader &state) {
  fields(state, *this);
  for (std::size_t i = 0; i < open_.size(); ++i) check_state(open_[i] <= given_open_[i], "open positions");
  const std::int64_t start = block_start(), length = options_.block_length;
  check_state(stop_ % length == 0 && start < stop_, "a length of the answer");
  check_state(count_of(part_of(open_, 0, start)) == 0, "open positions");
  if (count_of(open_) == 0) return;  // an answer may be settled at once
  const bool scheduled = !options_.rules.replace_schedule();
  const std::int64_t open = count_of(part_of(open_, start, length)), behind = start + length;
  const std::int64_t masked = count_of(part_of(given_open_, start, length));
  std::int64_t left = masked;
  for (std::int64_t step = 0; step < step_; ++step)
    left -= scheduled ? transfer_count(masked, options_.steps / options_.blocks(), step) : 1;
  // The schedule ends with the last open position, and any other step takes one at least.
  check_state(scheduled ? open == left : open <= left, "a step");
  check_state(part_of(open_, behind, options_.max_new_tokens - behind) ==
                  part_of(given_open_, behind, options_.max_new_tokens - behind),
              "open positions");
}

}  // namespace edgekit
