#include "session/kv_memory.h"

#include <algorithm>
#include <string>
#include <utility>

namespace edgekit {

KvFull::KvFull(std::uint64_t limit)
    : Error(EK_BUDGET_EXCEEDED, "the memory budget has room for " + std::to_string(limit) +
                                    " bytes of kept keys and values, which are taken; close or crop a sequence, or open "
                                    "the session for more") {}

void KvMemory::hold(std::uint64_t bytes) {
  if (bytes > limit || held > limit - bytes) throw KvFull(limit);
  held += bytes;
}

KvCharge::KvCharge(KvMemory &memory, std::uint64_t bytes) : memory_(&memory), bytes_(bytes) { memory.hold(bytes); }
KvCharge::~KvCharge() {
  if (memory_ != nullptr) memory_->held -= bytes_;
}
KvCharge::KvCharge(KvCharge &&other) noexcept { *this = std::move(other); }
KvCharge &KvCharge::operator=(KvCharge &&other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

KvChunk::KvChunk(std::shared_ptr<KvMemory> memory, const KvGeometry &shape, std::int64_t rows)
    : capacity(rows), shape_(shape), memory_(std::move(memory)) {
  if (rows > 0) block_ = memory_->memory->allocate(2 * shape.kv_heads * shape.head_dim * rows);
}

KvChunk::~KvChunk() { memory_->held -= bytes(shape_, touched_); }

void KvChunk::touch(std::int64_t stop) {
  if (stop <= touched_) return;
  memory_->hold(bytes(shape_, stop - touched_));
  touched_ = stop;
}

// Within the chunk at most as many at a time as lie between the old place and the new one: the copies of an engine must not
// overlap.
void KvChunk::copy_rows(const KvChunk &from, std::int64_t start, std::int64_t count, std::int64_t to) {
  const std::int64_t most = &from == this ? start - to : count;
  if (most <= 0) return;
  std::vector<FloatCopy> copies;
  for (std::int64_t done = 0; done < count; done += most) {
    FloatCopy copy;
    copy.to = floats() + (to + done) * shape_.head_dim;
    copy.from = from.floats() + (start + done) * shape_.head_dim;
    copy.count = std::min(most, count - done) * shape_.head_dim;
    copy.blocks = 2 * shape_.kv_heads;
    copy.to_stride = capacity * shape_.head_dim;
    copy.from_stride = from.capacity * shape_.head_dim;
    copies.push_back(copy);
  }
  memory_->memory->copy(copies);
  memory_->memory->finish();
}

}  // namespace edgekit
