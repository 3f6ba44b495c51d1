#include "session/sequence.h"

#include <algorithm>
#include <utility>

#include "error.h"
#include "session/memory.h"
#include "session/session.h"

namespace edgekit {

Sequence::Sequence(Session &session, const std::shared_ptr<KvMemory> &memory, std::function<void()> ended)
    : session_(session), kept_(memory), memory_(*memory->memory), ended_(std::move(ended)) {}

Sequence::Sequence(const Sequence &other, std::function<void()> ended)
    : Denoiser(other),
      session_(other.session_),
      kept_(other.kept_),
      memory_(other.memory_),
      last_rows_(other.last_rows_),
      last_pass_(other.last_pass_),
      texts_(other.texts_),
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

std::uint64_t Sequence::text() const {
  const auto length = static_cast<std::size_t>(prefix_length());
  if (length == 0) return kEmptyText;
  return length <= texts_.size() ? texts_[length - 1] : kNoText;
}

void Sequence::kept(std::int64_t at, const std::int64_t *ids, std::int64_t count, bool encoded) {
  texts_.resize(std::min(texts_.size(), static_cast<std::size_t>(at)));
  if (!encoded || texts_.size() != static_cast<std::size_t>(at)) return;
  for (std::int64_t i = 0; i < count; ++i)
    texts_.push_back(text_number(texts_.empty() ? kEmptyText : texts_.back(), ids[i]));
}

void Sequence::reset() {
  kept_.clear();
  session_.exchange_experts();
}

void Sequence::prefill(const std::int64_t *ids, std::int64_t count) {
  session_.check_prefill(*this, ids, count);
  const std::int64_t chunk = session_.prefill_rows();
  for (std::int64_t start = 0; start < count; start += chunk) {
    PassSegment segment;
    segment.sequence = this;
    segment.ids = ids + start;
    segment.count = std::min(chunk, count - start);
    segment.causal = true;
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
}

HeadResult Sequence::denoise(const std::int64_t *ids, std::int64_t count, const HeadRequest &request,
                             const float *soft) {
  if (count < 1) fail(EK_INVALID_ARGUMENT, "a canvas of ", count, " positions; it needs at least one");
  PassSegment segment;
  segment.sequence = this;
  segment.ids = ids;
  segment.count = count;
  segment.soft = soft;
  segment.request = &request;
  return std::move(session_.pass({segment}).front());
}

HeadResult Sequence::project(const HeadRequest &request) {
  PassSegment segment;
  segment.sequence = this;
  segment.request = &request;
  return std::move(session_.pass({segment}).front());
}

void Sequence::crop(std::int64_t length) {
  kept_.crop(length);
  keep({});
}

}  // namespace edgekit
