// Copies that come and go, crops and replaced rows leave rows in chunks that nobody keeps any more: packing gives them back.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "session/kept_rows.h"
#include "session/kv_memory.h"

namespace edgekit {
namespace {

// Rows of a chunk that somebody keeps, and their place in the packed one.
struct Range {
  std::int64_t start = 0, stop = 0, to = -1;
};

// By chunk: disjoint, ascending, and such that every piece lies within one.
using Ranges = std::map<const KvChunk *, std::vector<Range>>;

Ranges kept_ranges(const std::vector<KeptRows *> &texts, std::size_t layer) {
  Ranges out;
  for (const KeptRows *text : texts) {
    for (const KeptRows::Piece &piece : text->pieces(layer)) {
      std::vector<Range> &own = out[piece.chunk.get()];
      if (piece.count > 0) own.push_back({piece.start, piece.start + piece.count});
    }
  }
  for (auto &[chunk, ranges] : out) {
    std::sort(ranges.begin(), ranges.end(), [](const Range &a, const Range &b) { return a.start < b.start; });
    std::vector<Range> joined;
    for (const Range &each : ranges) {
      if (!joined.empty() && each.start <= joined.back().stop) {
        joined.back().stop = std::max(joined.back().stop, each.stop);
      } else {
        joined.push_back(each);
      }
    }
    ranges = std::move(joined);
  }
  return out;
}

std::int64_t rows_in(const Ranges &ranges) {
  std::int64_t total = 0;
  for (const auto &[chunk, own] : ranges) {
    for (const Range &each : own) total += each.stop - each.start;
  }
  return total;
}

Range &range_of(Ranges &ranges, const KeptRows::Piece &piece) {
  std::vector<Range> &own = ranges[piece.chunk.get()];
  const auto behind =
      std::upper_bound(own.begin(), own.end(), piece.start, [](std::int64_t at, const Range &r) { return at < r.start; });
  return *std::prev(behind);
}

// What the limit does not count while it lives: rows are there twice until the old ones go.
class Unlimited {
 public:
  explicit Unlimited(KvMemory &memory) : memory_(memory), limit_(std::exchange(memory.limit, UINT64_MAX)) {}
  ~Unlimited() { memory_.limit = limit_; }
  Unlimited(const Unlimited &) = delete;
  Unlimited &operator=(const Unlimited &) = delete;

 private:
  KvMemory &memory_;
  const std::uint64_t limit_;
};

// Fewer are not worth the copies, whoever keeps them.
constexpr std::uint64_t kScatteredBytes = std::uint64_t{1} << 20;
constexpr std::size_t kScatteredPieces = 16;

}  // namespace

std::uint64_t KvMemory::kept() const {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) total += KvChunk::bytes(layers[i], rows_in(kept_ranges(texts, i)));
  return total;
}

void KvMemory::pack() {
  memory->finish();
  for (std::size_t i = 0; i < layers.size(); ++i) pack(i);
}

// Each text has a chunk of its own, in which it can go on: what a window has passed moves out at the front. It was planned
// for, so that what copies had in common may be there several times.
void KvMemory::pack_window(std::size_t layer) {
  const Unlimited copying(*this);
  for (KeptRows *text : texts) {
    const KeptRows::Pieces &pieces = text->pieces(layer);
    const bool own_chunk = pieces.size() == 1 && pieces[0].count > 0 && pieces[0].chunk.use_count() == 1;
    if (own_chunk && pieces[0].chunk->capacity >= text->planned(layer)) continue;
    text->gather(layer, 0);
  }
}

void KvMemory::pack(std::size_t layer) {
  if (layers[layer].window != 0) return pack_window(layer);
  Ranges ranges = kept_ranges(texts, layer);
  const std::int64_t rows = rows_in(ranges);
  std::int64_t touched = 0;
  for (const auto &[chunk, own] : ranges) touched += chunk->touched();
  if (ranges.size() <= 1 && touched == rows) return;
  std::shared_ptr<KvChunk> packed;
  if (rows > 0) packed = texts.front()->new_chunk(layer, texts.size() == 1 ? std::max(rows, texts.front()->planned(layer)) : rows);
  // In the order of the texts: what one keeps behind rows that it shares comes behind them.
  const Unlimited copying(*this);
  for (const KeptRows *text : texts) {
    for (const KeptRows::Piece &piece : text->pieces(layer)) {
      if (piece.count == 0) continue;
      Range &range = range_of(ranges, piece);
      if (range.to >= 0) continue;
      const std::int64_t count = range.stop - range.start;
      range.to = packed->filled;
      packed->touch(range.to + count);
      packed->copy_rows(*piece.chunk, range.start, count, range.to);
      packed->filled += count;
    }
  }
  for (KeptRows *text : texts) {
    KeptRows::Pieces moved;
    for (const KeptRows::Piece &piece : text->pieces(layer)) {
      if (piece.count == 0) continue;
      const Range &range = range_of(ranges, piece);
      const std::int64_t start = range.to + piece.start - range.start;
      if (!moved.empty() && moved.back().start + moved.back().count == start) {
        moved.back().count += piece.count;
      } else {
        moved.push_back({packed, start, piece.count});
      }
    }
    text->replace(layer, std::move(moved));
  }
}

std::size_t KvMemory::most_pieces() const {
  std::size_t most = 0;
  for (const KeptRows *text : texts) {
    for (std::size_t i = 0; i < layers.size(); ++i) most = std::max(most, text->pieces(i).size());
  }
  return most;
}

void KvMemory::pack_if_scattered() {
  const std::size_t pieces = most_pieces();
  const bool more = held > 2 * known_held_ + kScatteredBytes, split = pieces > 2 * known_pieces_ + kScatteredPieces;
  if (!more && !split) return;
  if (split || held > 2 * kept()) pack();
  known_held_ = held;
  known_pieces_ = most_pieces();
}

}  // namespace edgekit
