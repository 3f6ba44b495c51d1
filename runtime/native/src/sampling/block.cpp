#include "sampling/block.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "error.h"
#include "sampling/schedule.h"

namespace edgekit {
namespace {

using Ids = std::vector<std::int64_t>;
using Flags = std::vector<std::uint8_t>;

std::int64_t count(const Ids &ids) { return static_cast<std::int64_t>(ids.size()); }

}  // namespace

BlockSampler::BlockSampler(SamplerModel about, BlockOptions options)
    : Sampler(std::move(about)), options_(std::move(options)) {
  options_.check();
  const std::int64_t block = model().prefix_block;
  if (block != 1 && block != options_.block_length)
    fail(EK_INVALID_ARGUMENT, "block_length is ", options_.block_length, "; this model encodes text in blocks of ", block,
         ", use that");
  if (block == 1) options_.align = "prompt";
  if (model().shift_logits && (options_.edits() || options_.align == "prompt"))
    fail(EK_INVALID_ARGUMENT, "the scores of this model are shifted by one: its blocks are neither edited nor counted from "
                              "the end of the prompt; leave out editing_threshold and align");
  if (options_.causal_start && options_.mode == "diffusion" && block != 1)
    fail(EK_INVALID_ARGUMENT, "causal_start is true; this model has no causal pass, its text is encoded in blocks of ", block,
         ": leave it out");
  if (seeds() || model().segments == 1) options_.ride = false;
  options_.draft_steps = draft_ahead(options_.draft_steps);
  // Where tokens are taken away and put in between, what is drawn has the confidence that it has without a temperature.
  draw_ = TokenDraw(options_.top_k, options_.top_p, options_.temperature, options_.delete_token_id.has_value());
  tokens_ = {Ids(static_cast<std::size_t>(options_.block_length), 0),
             Flags(static_cast<std::size_t>(options_.block_length), 0)};
  edits_ = BlockEdits(tokens_.open);
}

void BlockSampler::begin(const Ids &prompt, std::uint64_t of) {
  seed(of);
  check_prompt(prompt);
  if (options_.continue_prefix && model().prefix_length % model().prefix_block != 0)
    fail(EK_INVALID_ARGUMENT, "the encoded text ends in the middle of a block, with ", model().prefix_length,
         " tokens; encode whole blocks of ", model().prefix_block);
  auto [waiting, length] = beginning(prompt, options_.continue_prefix);
  waiting_ = std::move(waiting);
  if (seeds() && (length == 0 || (options_.causal_start && waiting_.empty())))
    fail(EK_INVALID_PROMPT, "the prompt is empty; this model needs at least a token to begin behind");
  set_lengths(options_.lengths(length));
  if (options_.continue_prefix)
    encode_or_begin();
  else
    ask_forget();
}

// How much of what waits is encoded now: whole blocks, but what gives a block its first token.
std::int64_t BlockSampler::whole_blocks() const {
  const std::int64_t length = count(waiting_), block = model().prefix_block, rest = length % block;
  if (options_.causal_start) return std::max<std::int64_t>(0, length - options_.block_length);
  if (options_.align == "prompt") return rest != 0 ? rest : length;
  return model().shift_logits && rest == 0 && length != 0 ? length - block : length - rest;
}

void BlockSampler::encode_or_begin() {
  const std::int64_t whole = whole_blocks();
  if (whole != 0) return ask_encode({waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(whole)});
  begin_block();
}

void BlockSampler::ask_waiting() {
  check_state(whole_blocks() != 0, "text that waits");
  encode_or_begin();
}

void BlockSampler::proceed(HeadResult &&) {
  switch (ask().kind) {
    case AskKind::forget:
      return encode_or_begin();
    case AskKind::encode:
      ++counters().prefills;
      waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(ask().ids.size()));
      return encode_or_begin();
    case AskKind::committed:
      told_ += count(ask().ids);
      if (end_ || told_ == options_.max_new_tokens || is_late()) {
        counters().finish_reason = ended_ ? FinishReason::eos : FinishReason::length;
        return tell_done();
      }
      waiting_.clear();
      if (encoded_length() == start_) waiting_ = tokens_.tokens;
      ++block_;
      // Encoded in the pass that begins the next block.
      return options_.ride ? begin_block() : encode_or_begin();
    default:  // a draft, or a crop
      return go_on();
  }
}

void BlockSampler::begin_block() {
  const std::int64_t length = options_.block_length, waiting = count(waiting_);
  const bool rides = options_.causal_start || waiting == length;  // what waits stands before the block
  ++counters().canvases;
  start_ = encoded_length() + (rides ? waiting : 0);
  given_ = rides ? 0 : waiting;
  tokens_ = {Ids(static_cast<std::size_t>(length), options_.mask_token_id), Flags(static_cast<std::size_t>(length), 1)};
  for (std::int64_t i = 0; i < given_; ++i) {
    tokens_.tokens[static_cast<std::size_t>(i)] = waiting_[static_cast<std::size_t>(i)];
    tokens_.open[static_cast<std::size_t>(i)] = 0;
  }
  edits_ = BlockEdits(tokens_.open);
  step_ = 0;
  end_.reset();
  stage_ = seeds() && rides ? Stage::seed : Stage::step;
  go_on();
}

void BlockSampler::go_on() {
  mark();
  // Rows of a pass whose block was not the finished one.
  const bool whole = stage_ == Stage::commit && !end_ && !is_last() && !is_late();
  if (encoded_length() > start_ && !whole) return ask_crop(start_);
  if (stage_ == Stage::seed) return ask_seed();
  if (stage_ == Stage::step && options_.edits() && edits_.done(tokens_.open, step_, options_)) {
    stage_ = Stage::commit;
    find_end();
  }
  stage_ == Stage::commit ? commit() : begin_step();
}

void BlockSampler::ask_seed() {
  AskSegment segment;
  segment.ids = waiting_;
  segment.at = encoded_length();
  segment.block = model().prefix_block;
  segment.keep = true;
  HeadRequest &request = segment.request.emplace();
  request.all_rows = false;
  request.rows = {count(waiting_) - 1};
  draw_.ask(request, 1, model().vocabulary, draws());
  ask_pass({std::move(segment)});
}

void BlockSampler::begin_step() {
  positions_.clear();
  std::int64_t from = given_, stop = options_.block_length;
  settles_ = is_last_step();
  if (options_.small_block_length && !settles_) {
    const auto open = std::find(tokens_.open.begin(), tokens_.open.end(), 1) - tokens_.open.begin();
    from = open / *options_.small_block_length * *options_.small_block_length;
    stop = from + *options_.small_block_length;
  }
  for (std::int64_t i = from; i < stop; ++i) {
    if (i >= given_ && (options_.edits() || tokens_.open[static_cast<std::size_t>(i)] != 0)) positions_.push_back(i);
  }
  AskSegment canvas;
  canvas.ids = tokens_.tokens;
  canvas.at = start_;
  HeadRequest &request = canvas.request.emplace();
  request.all_rows = false;
  request.rows = positions_;
  if (model().shift_logits) {
    for (std::int64_t &row : request.rows) --row;
  }
  if (options_.edits()) request.top_k = BlockEdits::top_k(options_);
  draw_.ask(request, count(positions_), model().vocabulary, draws());
  const bool rides = encoded_length() < start_;
  // Nothing is open: this may be the last pass.
  canvas.keep = options_.edits() && !rides && model().prefix_block != 1 && !any_open(options_.block_length);
  if (!rides) return ask_pass({std::move(canvas)});
  AskSegment finished;
  finished.ids = waiting_;
  finished.at = encoded_length();
  finished.block = model().prefix_block;
  finished.keep = true;
  canvas.seen = {{-1, 0, finished.at}, {0, 0, count(waiting_)}};
  ask_pass({std::move(finished), std::move(canvas)});
}

void BlockSampler::proceed_pass(std::vector<HeadResult> &&answers) {
  draw_.take(answers.front());
  if (stage_ == Stage::seed) {
    waiting_.clear();
    start_ = encoded_length();
    tokens_.tokens.front() = options_.temperature > 0 ? answers.front().sample.front() : answers.front().argmax.front();
    tokens_.open.front() = 0;
    edits_ = BlockEdits(tokens_.open);
    stage_ = Stage::step;
    find_end();
    if (end_ || is_settled()) stage_ = Stage::commit;
    return go_on();
  }
  if (count(waiting_) == options_.block_length) waiting_.clear();  // it was encoded with this
  end_step(std::move(answers.front()));
}

// Open positions that the step commits.
Flags BlockSampler::chosen(const HeadResult &answer) {
  const auto rows = positions_.size();
  Flags out(rows, settles_ ? 1 : 0);
  if (settles_) return out;
  if (options_.remasking == "entropy") {
    // JetEngine's rule: the smallest ones, while their sum stays below the bound.
    const Ids order = ascending_order(answer.entropy);
    double sum = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      const auto row = static_cast<std::size_t>(order[i]);
      sum += static_cast<double>(answer.entropy[row]);
      if (i > 0 && sum >= options_.entropy_bound) break;
      out[row] = 1;
    }
    return out;
  }
  std::vector<double> confidence;
  std::int64_t above = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    const double others = static_cast<double>(answer.others[r]);
    confidence.push_back(answer.sample.empty() ? 1 / (1 + others) : static_cast<double>(answer.sample_prob[r]));
    above += options_.threshold && confidence.back() > *options_.threshold;
  }
  const std::int64_t masks = options_.block_length - (options_.causal_start ? 1 : 0);
  const std::int64_t share = std::max<std::int64_t>(1, transfer_count(masks, options_.steps, step_));
  const std::int64_t need = std::min(share, static_cast<std::int64_t>(rows));
  if (above >= need) {
    for (std::size_t r = 0; r < rows; ++r) out[r] = confidence[r] > *options_.threshold;
  } else if (options_.remasking == "sequential") {
    std::fill(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(need), std::uint8_t{1});
  } else {
    for (const std::int64_t picked : most_confident(std::move(confidence), need)) out[static_cast<std::size_t>(picked)] = 1;
  }
  return out;
}

void BlockSampler::end_step(HeadResult &&answer) {
  ++counters().denoising_steps;
  Flags written(tokens_.tokens.size(), 0);
  bool done = false;
  if (options_.edits()) {
    // The last step of a block leaves nothing open.
    const std::int64_t step = settles_ ? options_.max_block_steps - 1 : step_;
    BlockEdits::Outcome outcome = edits_.apply(answer, given_, step, options_, tokens_);
    written = std::move(outcome.written);
    done = outcome.done || settles_;
  } else {
    const Flags picked = chosen(answer);
    for (std::size_t r = 0; r < picked.size(); ++r) {
      if (picked[r] == 0) continue;
      const auto position = static_cast<std::size_t>(positions_[r]);
      tokens_.tokens[position] = answer.sample.empty() ? answer.argmax[r] : answer.sample[r];
      tokens_.open[position] = 0;
      written[position] = 1;
    }
    find_end();
    done = end_ || is_settled();
  }
  ++step_;
  if (done) {
    stage_ = Stage::commit;
    find_end();
  }
  const auto at = static_cast<std::ptrdiff_t>(given_);
  tell_draft(block_, step_, told_, {tokens_.tokens.begin() + at, tokens_.tokens.end()}, {written.begin() + at, written.end()},
             {tokens_.tokens.begin(), tokens_.tokens.begin() + at});
}

void BlockSampler::find_end() {
  const auto at = static_cast<std::ptrdiff_t>(given_);
  end_.reset();
  if (options_.stop_at_eos)
    end_ = answer_end(tokens_.tokens.data() + at, {tokens_.open.begin() + at, tokens_.open.end()}, options_.eos_token_ids);
  const std::int64_t left = options_.max_new_tokens - told_;
  if (end_ && *end_ > left) end_.reset();
  if (end_ || !is_late() || !any_open(options_.block_length)) return;
  // No pass is left for what is open behind the token that the block began with.
  end_ = std::find(tokens_.open.begin(), tokens_.open.end(), 1) - tokens_.open.begin() - given_;
}

bool BlockSampler::any_open(std::int64_t stop) const {
  const auto end = tokens_.open.begin() + static_cast<std::ptrdiff_t>(stop);
  return std::find(tokens_.open.begin(), end, 1) != end;
}

// What is beyond the answer need not be.
bool BlockSampler::is_settled() const {
  return !any_open(std::min(options_.block_length, given_ + options_.max_new_tokens - told_));
}

bool BlockSampler::is_last() const { return options_.max_new_tokens - told_ <= options_.block_length - given_; }

void BlockSampler::commit() {
  const std::int64_t left = std::min(options_.max_new_tokens - told_, options_.block_length - given_);
  const std::int64_t length = end_.value_or(left);
  const auto *first = tokens_.tokens.data() + given_;
  ended_ = std::any_of(first, first + length, [&](std::int64_t token) { return contains(options_.eos_token_ids, token); });
  counters().committed_tokens += length;
  Ids kept;
  if (encoded_length() <= start_) kept.assign(tokens_.tokens.begin(), tokens_.tokens.begin() + static_cast<std::ptrdiff_t>(given_ + length));
  tell_committed(block_, {first, first + length}, std::move(kept));
}

template <typename Archive, typename Self>
void BlockSampler::fields(Archive &archive, Self &self) {
  const std::int64_t length = self.options_.block_length;
  const StateLimits tokens{0, self.model().vocabulary - 1}, block{length, length};
  archive.integers("text that waits", self.waiting_, {0, kMostTokens}, tokens);
  archive.integer("a number of told tokens", self.told_, {0, self.options_.max_new_tokens});
  archive.integer("a position", self.start_, {0, 4 * kMostTokens});
  archive.integer("a block", self.block_, {0, kMostTokens});
  archive.integer("a step", self.step_, {0, kMostTokens});
  archive.integer("a number of given tokens", self.given_, {0, length - 1});
  archive.integers("the tokens of a block", self.tokens_.tokens, block, tokens);
  archive.flags("open positions", self.tokens_.open, block);
}

void BlockSampler::write(StateWriter &state) const {
  fields(state, *this);
  state.integer("a stage", static_cast<std::int64_t>(stage_), {0, 2});
  edits_.write(state, options_.block_length, model().vocabulary);
}

void BlockSampler::read(StateReader &state) {
  fields(state, *this);
  std::int64_t stage = 0;
  state.integer("a stage", stage, {0, 2});
  stage_ = static_cast<Stage>(stage);
  edits_.read(state, options_.block_length, model().vocabulary);
  find_end();
}

}  // namespace edgekit
