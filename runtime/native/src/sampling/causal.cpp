#include "sampling/causal.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "error.h"
#include "sampling/schedule.h"

namespace edgekit {
namespace {

using Ids = std::vector<std::int64_t>;

std::int64_t count(const Ids &ids) { return static_cast<std::int64_t>(ids.size()); }

}  // namespace

CausalSampler::CausalSampler(SamplerModel about, BlockOptions options)
    : Sampler(std::move(about)), options_(std::move(options)) {
  options_.check();
  if (model().prefix_block != 1)
    fail(EK_INVALID_ARGUMENT, "mode is ", options_.mode, "; this model has no causal pass, its text is encoded in blocks of ",
         model().prefix_block, ": use mode diffusion");
  if (model().segments != 0) options_.ahead = std::min(options_.ahead, model().segments - 1);
  draw_ = TokenDraw(options_.top_k, options_.top_p, options_.temperature);
  counts_.assign(static_cast<std::size_t>(options_.block_length), 0);
}

void CausalSampler::begin(const Ids &prompt, std::uint64_t of) {
  seed(of);
  check_prompt(prompt);
  auto [waiting, length] = beginning(prompt, options_.continue_prefix);
  waiting_ = std::move(waiting);
  if (waiting_.empty())
    fail(EK_INVALID_PROMPT, "the prompt is empty; mode ", options_.mode, " needs at least a token to begin behind");
  set_lengths(options_.lengths(length));
  if (options_.continue_prefix)
    encode_or_verify();
  else
    ask_forget();
}

// All but the last token, which the first pass takes with it.
void CausalSampler::encode_or_verify() {
  if (waiting_.size() > 1) return ask_encode({waiting_.begin(), waiting_.end() - 1});
  length_ = encoded_length();
  go_on();
}

void CausalSampler::ask_waiting() {
  check_state(waiting_.size() > 1, "text that waits");
  encode_or_verify();
}

void CausalSampler::proceed(HeadResult &&) {
  switch (ask().kind) {
    case AskKind::forget:
      return encode_or_verify();
    case AskKind::encode:
      ++counters().prefills;
      waiting_ = {waiting_.back()};
      return encode_or_verify();
    case AskKind::committed:
      told_ += count(ask().ids);
      if (ended_ || left() == 0 || is_late()) {
        counters().finish_reason = ended_ ? FinishReason::eos : FinishReason::length;
        return tell_done();
      }
      fresh_.clear();
      stage_ = options_.mode == "speculative" && draft_.empty() && left() > 1 ? Stage::draft : Stage::verify;
      return go_on();
    default:  // a crop
      return go_on();
  }
}

void CausalSampler::go_on() {
  mark();
  if (encoded_length() > length_) return ask_crop(length_);
  if (stage_ == Stage::draft && is_last_step()) stage_ = Stage::verify;  // a draft is no answer
  if (stage_ == Stage::draft) return ask_draft();
  if (stage_ == Stage::verify) return ask_verify();
  counters().committed_tokens += count(fresh_);
  tell_committed(passes_ - 1, fresh_, waiting_);
}

// Masks, or tokens and masks, to be predicted from a row on.
AskSegment CausalSampler::canvas(std::int64_t at, Ids ids, std::int64_t first_row) const {
  AskSegment segment;
  segment.ids = std::move(ids);
  segment.ids.resize(static_cast<std::size_t>(options_.block_length), options_.mask_token_id);
  segment.at = at;
  segment.adapter = options_.draft_adapter;
  HeadRequest &request = segment.request.emplace();
  request.all_rows = false;
  for (std::int64_t row = first_row; row < options_.block_length; ++row) request.rows.push_back(row);
  return segment;
}

void CausalSampler::ask_draft() { ask_pass({canvas(length_, waiting_, 1)}); }

void CausalSampler::ask_verify() {
  AskSegment text;
  text.ids = waiting_;
  text.ids.insert(text.ids.end(), draft_.begin(), draft_.end());
  text.at = length_;
  text.block = 1;
  text.keep = true;
  HeadRequest &request = text.request.emplace();
  draw_.ask(request, count(text.ids), model().vocabulary, draws());
  ahead_ = likeliest();
  std::vector<AskSegment> segments{std::move(text)};
  for (const std::int64_t taken : ahead_) {
    AskSegment next = canvas(length_ + 1 + taken, {}, 0);
    next.seen = {{-1, 0, length_}, {0, 0, 1 + taken}};
    segments.push_back(std::move(next));
  }
  ask_pass(std::move(segments));
}

// The numbers of draft tokens that will most likely be taken; of equal ones the larger, as long as an answer follows.
Ids CausalSampler::likeliest() const {
  if (options_.mode != "speculative") return {};
  Ids numbers(static_cast<std::size_t>(std::min(count(draft_), left() - 2) + 1));
  std::iota(numbers.rbegin(), numbers.rend(), std::int64_t{0});
  std::stable_sort(numbers.begin(), numbers.end(), [&](std::int64_t a, std::int64_t b) {
    return counts_[static_cast<std::size_t>(a)] > counts_[static_cast<std::size_t>(b)];
  });
  numbers.resize(std::min(numbers.size(), static_cast<std::size_t>(options_.ahead)));
  return numbers;
}

void CausalSampler::proceed_pass(std::vector<HeadResult> &&answers) {
  if (stage_ == Stage::verify) {
    draw_.take(answers.front());
    return take_verified(answers);
  }
  set_draft(std::move(answers.front().argmax), left());
  stage_ = Stage::verify;
  go_on();
}

// `left` tokens are to come: a draft longer than that is verified for nothing.
void CausalSampler::set_draft(Ids tokens, std::int64_t left) {
  tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(std::max<std::int64_t>(0, left - 1))));
  draft_ = std::move(tokens);
}

void CausalSampler::take_verified(const std::vector<HeadResult> &answers) {
  const HeadResult &verified = answers.front();
  const Ids &says = options_.temperature > 0 ? verified.sample : verified.argmax;
  std::size_t taken = 0;
  while (taken < draft_.size() && draft_[taken] == says[taken]) ++taken;
  if (!draft_.empty()) ++counts_[taken];
  Ids tokens{draft_.begin(), draft_.begin() + static_cast<std::ptrdiff_t>(taken)};
  tokens.push_back(says[taken]);
  ++counters().denoising_steps;
  ++passes_;

  std::size_t length = std::min(tokens.size(), static_cast<std::size_t>(left()));
  const auto is_end = [&](std::int64_t token) { return contains(options_.eos_token_ids, token); };
  const auto end = static_cast<std::size_t>(std::find_if(tokens.begin(), tokens.end(), is_end) - tokens.begin());
  ended_ = options_.stop_at_eos && end < length;
  if (ended_) length = end + 1;
  // The last one is the pass's own, and not encoded yet.
  const bool all = length == tokens.size();
  length_ += static_cast<std::int64_t>(1 + std::min(length, taken));
  waiting_ = all ? Ids{tokens.back()} : Ids{};
  fresh_ = {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(length)};

  const auto drafted = std::find(ahead_.begin(), ahead_.end(), static_cast<std::int64_t>(taken));
  draft_.clear();
  if (drafted != ahead_.end()) {
    const Ids &next = answers[1 + static_cast<std::size_t>(drafted - ahead_.begin())].argmax;
    set_draft({next.begin() + 1, next.end()}, left() - count(fresh_));
  }
  stage_ = Stage::commit;
  go_on();
}

template <typename Archive, typename Self>
void CausalSampler::fields(Archive &archive, Self &self) {
  const StateLimits tokens{0, self.model().vocabulary - 1};
  const std::int64_t block = self.options_.block_length;
  archive.integers("text that waits", self.waiting_, {0, kMostTokens}, tokens);
  archive.integer("a number of told tokens", self.told_, {0, self.options_.max_new_tokens});
  archive.integer("a length of the text", self.length_, {0, 4 * kMostTokens});
  archive.integer("a number of passes", self.passes_, {0, kMostTokens});
  archive.integers("a draft", self.draft_, {0, block - 1}, tokens);
  archive.integers("accepted tokens", self.fresh_, {0, block}, tokens);
  archive.integers("numbers of taken tokens", self.counts_, {block, block}, {0, kMostTokens});
  archive.flag("an end", self.ended_);
}

void CausalSampler::write(StateWriter &state) const {
  fields(state, *this);
  state.integer("a stage", static_cast<std::int64_t>(stage_), {0, 2});
}

void CausalSampler::read(StateReader &state) {
  fields(state, *this);
  std::int64_t stage = 0;
  state.integer("a stage", stage, {0, 2});
  stage_ = static_cast<Stage>(stage);
  const bool commits = stage_ == Stage::commit;
  check_state(commits == !fresh_.empty() && count(fresh_) <= left(), "accepted tokens");
  check_state(commits || !waiting_.empty(), "text that waits");
  check_state(commits || waiting_.size() == 1 || length_ == 0, "text that waits");
  check_state(count(draft_) < std::max<std::int64_t>(1, left()), "a draft");
}

}  // namespace edgekit
