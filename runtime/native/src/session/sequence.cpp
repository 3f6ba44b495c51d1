#include "session/sequence.h"

#include <algorithm>
#include <utility>

#include "error.h"
#include "session/memory.h"
#include "session/session.h"

namespace edgekit {

Sequence::Sequence(Session &session, const std::shared_ptr<KvMemory> &memory, std::int64_t block,
                   std::function<void()> ended)
    : session_(session), kept_(memory), memory_(*memory->memory), text_(block), ended_(std::move(ended)) {}

Sequence::Sequence(const Sequence &other, std::function<void()> ended)
    : Denoiser(other),
      session_(other.session_),
      kept_(other.kept_),
      memory_(other.memory_),
      last_rows_(other.last_rows_),
      last_pass_(other.last_pass_),
      text_(other.text_),
      ended_(std::move(ended)) {
  if (last_rows_ == 0) return;
  FloatCopy copy;
  copy.count = last_rows_ * hidden_size();
  copy.to = last_.floats(copy.count, memory_);
  copy.from = other.last_.data();
  memory_.copy({copy});
  memory_.finish();
}

Sequence::~Sequence() { ended_(); }

std::int64_t Sequence::vocabulary() const { return session_.model().vocabulary; }
std::int64_t Sequence::hidden_size() const { return session_.model().hidden; }
std::int64_t Sequence::prefix_block() const { return session_.model().prefix_block; }
bool Sequence::shift_logits() const { return session_.model().shift_logits; }
bool Sequence::role_head() const { return session_.model().role_width != 0; }
std::int64_t Sequence::most_segments() const { return session_.most_segments(); }

void Sequence::reset() {
  kept_.clear();
  session_.exchange_experts();
}

void Sequence::prefill(const std::int64_t *ids, std::int64_t count) {
  session_.check_prefill(*this, ids, count);
  const std::int64_t chunk = session_.prefill_rows(), before = prefix_length();
  for (std::int64_t start = 0; start < count; start += chunk) {
    PassSegment segment;
    segment.sequence = this;
    segment.ids = ids + start;
    segment.count = std::min(chunk, count - start);
    segment.causal = true;
    segment.block = session_.model().prefix_block;
    segment.adapter = session_.adapter();
    segment.keep_at = prefix_length();
    try {
      session_.pass({segment}, start + chunk < count ? Pass::prefill : Pass::denoise);
    } catch (const BudgetError &) {
      if (start > 0) kept_.clear();
      throw;
    } catch (...) {
      kept_.clear();  // not half of a text
      throw;
    }
  }
  text_.join(before);
}

HeadResult Sequence::denoise(const std::int64_t *ids, std::int64_t count, const HeadRequest &request,
                             const float *soft) {
  if (count < 1) fail(EK_INVALID_ARGUMENT, "a canvas of ", count, " positions; it needs at least one");
  PassSegment segment;
  segment.sequence = this;
  segment.ids = ids;
  segment.count = count;
  segment.soft = soft;
  segment.adapter = session_.adapter();
  segment.request = &request;
  return std::move(session_.pass({segment}).front());
}

HeadResult Sequence::project(const HeadRequest &request) {
  PassSegment segment;
  segment.sequence = this;
  segment.request = &request;
  return std::move(session_.pass({segment}).front());
}

std::vector<HeadResult> Sequence::pass(const std::vector<AskSegment> &segments) {
  std::vector<PassSegment> wanted;
  std::vector<std::vector<std::int64_t>> positions;
  positions.reserve(segments.size());
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const AskSegment &asked = segments[i];
    PassSegment &segment = wanted.emplace_back();
    segment.sequence = this;
    segment.ids = asked.ids.data();
    segment.count = static_cast<std::int64_t>(asked.ids.size());
    segment.positions = positions.emplace_back(asked.row_positions()).data();
    segment.causal = asked.block != 0;
    segment.block = std::max<std::int64_t>(1, asked.block);
    segment.adapter = asked.adapter != 0 ? asked.adapter : session_.adapter();
    if (asked.keep) segment.keep_at = asked.at;
    segment.keep_count = asked.keep_count;
    segment.seen = asked.seen;
    if (!asked.keep && !asked.seen) segment.seen = {{-1, 0, asked.at}};
    if (asked.request) segment.request = &*asked.request;
  }
  std::vector<HeadResult> answers = session_.pass(wanted), asked;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].request) asked.push_back(std::move(answers[i]));
  }
  return asked;
}

void Sequence::crop(std::int64_t length) {
  kept_.crop(length);
  keep({});
}

}  // namespace edgekit
