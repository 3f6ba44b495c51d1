// Keys and values of the committed positions of a sequence, per layer: the prefix KV.
//
// They lie in chunks that sequences share. Rows of a chunk that somebody keeps are never written again, so a copy of a
// sequence takes no memory until the two go on differently.
#ifndef EDGEKIT_SESSION_KEPT_ROWS_H
#define EDGEKIT_SESSION_KEPT_ROWS_H

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "session/kv_memory.h"

namespace edgekit {

class KeptRows {
 public:
  // Rows start..start+count of a chunk.
  struct Piece {
    std::shared_ptr<KvChunk> chunk;
    std::int64_t start = 0, count = 0;
  };
  using Pieces = std::vector<Piece>;

  explicit KeptRows(std::shared_ptr<KvMemory> memory);
  ~KeptRows();
  // Shares the chunks. What is pending is not copied.
  KeptRows(const KeptRows &other);
  KeptRows &operator=(const KeptRows &) = delete;

  // What one sequence of so many positions takes.
  static std::uint64_t bytes(const std::vector<KvGeometry> &layers, std::int64_t positions, std::int64_t chunk);

  std::int64_t length() const noexcept { return length_; }
  void clear();

  // The first position whose rows a layer still has: layers with a window let go of what nothing behind will see.
  std::int64_t first(std::size_t layer) const;

  // Rows of positions first..stop, which the layer must have. Valid until the next change of this object.
  void append_pieces(std::size_t layer, std::int64_t first, std::int64_t stop, std::vector<KeyPiece> &out) const;

  // Throws Error (EK_INVALID_STATE) unless what is kept can go on at position `at`: at most length(), and not so far back
  // that a layer with a window lacks what precedes it.
  void check(std::int64_t at) const;

  // Where the rows of positions at..at+count of a layer go, whatever is kept of these: the first of them become part of it when
  // all layers have been written and `commit` is called, and never after `abandon`. check(at) holds. What append_pieces gave of
  // this layer before is invalid. Throws Error: EK_OUT_OF_MEMORY, EK_BUDGET_EXCEEDED, EK_ENGINE_FAILED.
  KeyPiece prepare(std::size_t layer, std::int64_t at, std::int64_t count);
  // Throws Error (EK_ENGINE_FAILED) where an engine's memory of its own fails while rows are moved in it; so may `prepare`.
  // Nothing is kept then: rows that are half moved must not pass for whole ones.
  void commit(std::int64_t count);
  void commit() { commit(pending_count_); }
  void abandon() noexcept;

  // The same where nothing is kept and each layer was prepared for as many rows as it needs: they become the last of `length`
  // positions.
  void commit_last(std::int64_t length);

  // Forgets what lies at and behind `length`. Throws as check().
  void crop(std::int64_t length);

  // For KvMemory::pack, which moves them.
  const Pieces &pieces(std::size_t layer) const { return layers_[layer]; }
  void replace(std::size_t layer, Pieces moved) { layers_[layer] = std::move(moved); }
  std::shared_ptr<KvChunk> new_chunk(std::size_t layer, std::int64_t capacity) const;
  std::int64_t planned(std::size_t layer) const;  // rows of a chunk for all that it is expected to keep

  // To a chunk of their own that has room for `more`, and for what is planned. Of a layer with a window, what is still seen
  // if the last chunk is taken back. Throws Error: EK_OUT_OF_MEMORY, EK_BUDGET_EXCEEDED, EK_ENGINE_FAILED; all stays as it was.
  void gather(std::size_t layer, std::int64_t more);

 private:
  void settle_pending();
  std::int64_t still_seen(std::size_t layer, std::int64_t count) const;  // of the last `count` rows
  void let_go(std::size_t layer);                                        // of the others
  const KvGeometry &geometry(std::size_t layer) const { return memory_->layers[layer]; }
  std::int64_t rows(std::size_t layer) const;
  void take(std::size_t layer, std::int64_t first, std::int64_t stop, Pieces &out) const;
  Piece room(std::size_t layer, std::int64_t count);
  bool overwrite(std::size_t layer, const Piece &made);

  std::shared_ptr<KvMemory> memory_;
  std::vector<Pieces> layers_;
  std::int64_t length_ = 0;
  // Of rows that are being written.
  std::vector<Piece> pending_;  // by layer; without a chunk: not asked for
  std::int64_t pending_at_ = 0, pending_count_ = 0;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_KEPT_ROWS_H
