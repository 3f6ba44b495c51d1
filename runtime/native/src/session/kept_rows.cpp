#include "session/kept_rows.h"

#include <algorithm>
#include <utility>

#include "error.h"

namespace edgekit {
namespace {

// A layer with a window has room for two chunks behind it: what is kept moves to the front once per several chunks, and
// the last chunk can be cropped.
std::int64_t capacity_for(const KvGeometry &layer, std::int64_t positions, std::int64_t chunk) {
  return layer.window == 0 ? positions : std::min(positions, layer.window - 1 + 2 * chunk);
}

}  // namespace

KeptRows::KeptRows(std::shared_ptr<KvMemory> memory)
    : memory_(std::move(memory)), layers_(memory_->layers.size()), pending_(layers_.size()) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::int64_t capacity = planned(i);
    if (capacity > 0) layers_[i].push_back({new_chunk(i, capacity), 0, 0});
  }
  memory_->texts.push_back(this);
}

KeptRows::~KeptRows() {
  std::vector<KeptRows *> &texts = memory_->texts;
  texts.erase(std::remove(texts.begin(), texts.end(), this), texts.end());
}

KeptRows::KeptRows(const KeptRows &other)
    : memory_(other.memory_), layers_(other.layers_), length_(other.length_), pending_(layers_.size()) {
  memory_->texts.push_back(this);
}

std::uint64_t KeptRows::bytes(const std::vector<KvGeometry> &layers, std::int64_t positions, std::int64_t chunk) {
  std::uint64_t total = 0;
  for (const KvGeometry &layer : layers) total += KvChunk::bytes(layer, capacity_for(layer, positions, chunk));
  return total;
}

std::shared_ptr<KvChunk> KeptRows::new_chunk(std::size_t layer, std::int64_t capacity) const {
  return std::make_shared<KvChunk>(memory_, geometry(layer), capacity);
}

std::int64_t KeptRows::planned(std::size_t layer) const {
  return capacity_for(geometry(layer), memory_->positions, memory_->chunk);
}

std::int64_t KeptRows::still_seen(std::size_t layer, std::int64_t count) const {
  const std::int64_t window = geometry(layer).window;
  return window == 0 ? count : std::min(count, window - 1 + memory_->chunk);
}

void KeptRows::clear() {
  abandon();
  for (Pieces &pieces : layers_) {
    if (pieces.empty()) continue;
    // Its memory serves again, unless others need it.
    pieces.resize(1);
    if (pieces[0].chunk.use_count() != 1) {
      pieces.clear();
    } else {
      pieces[0].start = pieces[0].count = 0;
    }
  }
  length_ = 0;
}

std::int64_t KeptRows::rows(std::size_t layer) const {
  std::int64_t total = 0;
  for (const Piece &piece : layers_[layer]) total += piece.count;
  return total;
}

std::int64_t KeptRows::first(std::size_t layer) const { return length_ - rows(layer); }

void KeptRows::take(std::size_t layer, std::int64_t first, std::int64_t stop, Pieces &out) const {
  std::int64_t at = this->first(layer);
  for (const Piece &piece : layers_[layer]) {
    const std::int64_t from = std::max(first, at), to = std::min(stop, at + piece.count);
    if (from < to) out.push_back({piece.chunk, piece.start + from - at, to - from});
    at += piece.count;
  }
}

void KeptRows::append_pieces(std::size_t layer, std::int64_t first, std::int64_t stop,
                             std::vector<KeyPiece> &out) const {
  Pieces pieces;
  take(layer, first, stop, pieces);
  for (const Piece &piece : pieces) out.push_back(piece.chunk->rows(piece.start, piece.count));
}

void KeptRows::check(std::int64_t at) const {
  if (at < 0 || at > length_) {
    fail(EK_INVALID_ARGUMENT, "position ", at, " of a sequence that keeps ", length_);
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::int64_t window = geometry(i).window;
    if (window == 0 || first(i) <= std::max<std::int64_t>(0, at - (window - 1))) continue;
    fail(EK_INVALID_STATE, "position ", at, " of ", length_, " is too far back: layers with a window of ", window,
         " no longer have what precedes it; encode the text again");
  }
}

// Memory behind the last piece for `count` rows more.
KeptRows::Piece KeptRows::room(std::size_t layer, std::int64_t count) {
  Pieces &pieces = layers_[layer];
  const std::int64_t window = geometry(layer).window;
  if (!pieces.empty()) {
    Piece &last = pieces.back();
    KvChunk &own = *last.chunk;
    const bool alone = last.chunk.use_count() == 1;
    if (alone) own.filled = last.start + last.count;  // nobody keeps what was cropped
    const bool open = own.filled == last.start + last.count;
    if (open && own.capacity - own.filled >= count) return {last.chunk, own.filled, count};
    const std::int64_t kept = still_seen(layer, last.count);
    if (alone && window != 0 && pieces.size() == 1 && own.capacity - kept >= count) {
      memory_->memory->finish();  // what fails here has harmed nothing that is kept
      try {
        own.copy_rows(own, last.start + last.count - kept, kept, 0);
      } catch (...) {
        clear();
        throw;
      }
      last.start = 0;
      last.count = own.filled = kept;
      return {last.chunk, kept, count};
    }
  }
  const std::int64_t all = rows(layer);
  // What was planned for comes in pieces instead: the limit has no room for the rows of a layer twice.
  const bool beyond = all + count > planned(layer) && pieces.size() == 1 && pieces[0].chunk.use_count() == 1;
  const bool moves = window != 0 || beyond;
  if (!moves || all == 0) {
    if (all == 0) pieces.clear();
    return {new_chunk(layer, std::max({count, memory_->chunk, planned(layer) - all})), 0, count};
  }
  // One piece again. Doubling keeps the copies of a prefix that nobody announced in proportion to its length.
  gather(layer, std::max(count, window == 0 ? all : memory_->chunk));
  return {pieces.back().chunk, pieces.back().count, count};
}

void KeptRows::gather(std::size_t layer, std::int64_t more) {
  const std::int64_t kept = still_seen(layer, rows(layer));
  Pieces from, gathered;
  take(layer, length_ - kept, length_, from);
  if (kept > 0) {
    Piece made{new_chunk(layer, std::max(planned(layer), kept + more)), 0, kept};
    made.chunk->touch(kept);
    for (const Piece &piece : from) {
      made.chunk->copy_rows(*piece.chunk, piece.start, piece.count, made.chunk->filled);
      made.chunk->filled += piece.count;
    }
    gathered.push_back(std::move(made));
  }
  layers_[layer] = std::move(gathered);
}

KeyPiece KeptRows::prepare(std::size_t layer, std::int64_t at, std::int64_t count) {
  pending_at_ = at;
  pending_count_ = count;
  Piece made = at == length_ ? room(layer, count) : Piece{new_chunk(layer, count), 0, count};
  made.chunk->touch(made.start + count);
  made.chunk->filled = made.start + count;  // not for another sequence of the same pass
  pending_[layer] = std::move(made);
  return pending_[layer].chunk->rows(pending_[layer].start, count);
}

// Replaced rows take the place of the old ones where nobody else keeps these.
bool KeptRows::overwrite(std::size_t layer, const Piece &made) {
  std::int64_t at = first(layer);
  for (const Piece &piece : layers_[layer]) {
    const std::int64_t offset = pending_at_ - at;
    at += piece.count;
    if (offset < 0 || offset + made.count > piece.count) continue;
    if (piece.chunk.use_count() != 1) return false;
    piece.chunk->copy_rows(*made.chunk, made.start, made.count, piece.start + offset);
    return true;
  }
  return false;
}

void KeptRows::let_go(std::size_t layer) {
  Pieces &pieces = layers_[layer];
  std::int64_t surplus = rows(layer) - still_seen(layer, rows(layer));
  auto first = pieces.begin();
  for (; surplus > 0 && first != pieces.end(); ++first) {
    const std::int64_t gone = std::min(surplus, first->count);
    first->start += gone;
    first->count -= gone;
    surplus -= gone;
    if (first->count > 0) break;
  }
  pieces.erase(pieces.begin(), first);
}

void KeptRows::commit(std::int64_t count) {
  if (count < pending_count_) {
    for (Piece &piece : pending_) {
      // Nobody has the others.
      if (piece.chunk->filled == piece.start + piece.count) piece.chunk->filled = piece.start + count;
      piece.count = count;
    }
    pending_count_ = count;
  }
  try {
    settle_pending();
  } catch (...) {
    clear();  // some layers may have new rows, and others parts of them
    throw;
  }
  length_ = std::max(length_, pending_at_ + pending_count_);
}

void KeptRows::commit_last(std::int64_t length) {
  commit();
  length_ = length;
}

void KeptRows::settle_pending() {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Piece made = std::move(pending_[i]);
    pending_[i] = {};
    Pieces &pieces = layers_[i];
    if (pending_at_ < length_) {
      if (overwrite(i, made)) continue;
      Pieces spliced;
      take(i, first(i), pending_at_, spliced);
      spliced.push_back(std::move(made));
      take(i, pending_at_ + pending_count_, length_, spliced);
      pieces = std::move(spliced);
      let_go(i);
      continue;
    }
    const bool follows = !pieces.empty() && pieces.back().chunk == made.chunk &&
                         pieces.back().start + pieces.back().count == made.start;
    if (follows) {
      pieces.back().count += made.count;
    } else {
      pieces.push_back(std::move(made));
    }
  }
}

void KeptRows::abandon() noexcept {
  for (Piece &piece : pending_) {
    if (piece.chunk && piece.chunk->filled == piece.start + piece.count) piece.chunk->filled = piece.start;
    piece = {};
  }
}

void KeptRows::crop(std::int64_t length) {
  if (length == 0) return clear();
  check(length);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Pieces kept;
    take(i, first(i), length, kept);
    layers_[i] = std::move(kept);
  }
  length_ = length;
}

}  // namespace edgekit
