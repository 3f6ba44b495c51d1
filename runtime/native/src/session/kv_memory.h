// The memory in which the sequences of a session keep keys and values: its limit, and the chunks that they share.
#ifndef EDGEKIT_SESSION_KV_MEMORY_H
#define EDGEKIT_SESSION_KV_MEMORY_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "error.h"
#include "kernels/attention.h"
#include "session/engine_memory.h"

namespace edgekit {

struct KvGeometry {
  std::int64_t kv_heads = 0, head_dim = 0;
  std::int64_t window = 0;  // 0: all is kept; else a position is seen by the window - 1 behind it
};

// EK_BUDGET_EXCEEDED: what sequences may hold together is taken.
class KvFull : public Error {
 public:
  explicit KvFull(std::uint64_t limit);
};

class KeptRows;

// What the sequences of a session have in common.
struct KvMemory {
  EngineMemory *memory = &session_memory();  // where they lie
  std::vector<KvGeometry> layers;
  std::int64_t positions = 0;  // that a sequence is expected to keep
  std::int64_t chunk = 0;      // that come at once
  std::uint64_t limit = UINT64_MAX;  // bytes that all sequences may hold together
  std::uint64_t held = 0;
  std::vector<KeptRows *> texts;  // all that share it

  // Throws KvFull.
  void hold(std::uint64_t bytes);

  // Bytes of rows that some sequence keeps. `held` also counts rows that no longer are kept, in chunks that are.
  std::uint64_t kept() const;

  // Puts the rows that are kept side by side, so that the others give their memory back. Layers with a window let go of
  // what nothing behind will see. No pass is under way. While it
  // works, it takes what is kept of one layer once more. Throws Error (EK_OUT_OF_MEMORY, EK_ENGINE_FAILED); every sequence
  // keeps what it kept.
  void pack();

  // `pack`, where most of what is held, or most pieces, have come since it was last asked for.
  void pack_if_scattered();

 private:
  void pack(std::size_t layer);
  void pack_window(std::size_t layer);
  std::size_t most_pieces() const;

  std::uint64_t known_held_ = 0;
  std::size_t known_pieces_ = 0;
};

// Bytes that count as held while it lives, for keys and values that nobody keeps.
class KvCharge {
 public:
  KvCharge() = default;
  // Throws KvFull.
  KvCharge(KvMemory &memory, std::uint64_t bytes);
  ~KvCharge();
  KvCharge(KvCharge &&other) noexcept;
  KvCharge &operator=(KvCharge &&other) noexcept;

 private:
  KvMemory *memory_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// Keys [KV, capacity, D], then values, in the engine's memory.
class KvChunk {
 public:
  // Throws Error (EK_OUT_OF_MEMORY, EK_ENGINE_FAILED).
  KvChunk(std::shared_ptr<KvMemory> memory, const KvGeometry &shape, std::int64_t rows);
  ~KvChunk();
  KvChunk(const KvChunk &) = delete;
  KvChunk &operator=(const KvChunk &) = delete;

  static std::uint64_t bytes(const KvGeometry &shape, std::int64_t rows) {
    return 2 * sizeof(float) * static_cast<std::uint64_t>(shape.kv_heads * shape.head_dim * rows);
  }

  KeyPiece rows(std::int64_t start, std::int64_t count) const {
    return keys_at(floats(), shape_.kv_heads, shape_.head_dim, capacity, start, count);
  }

  std::int64_t touched() const { return touched_; }

  // Counts rows that are about to be written for the first time. Throws KvFull.
  void touch(std::int64_t stop);

  // Rows of the chunk itself move to the front. Throws Error (EK_ENGINE_FAILED).
  void copy_rows(const KvChunk &from, std::int64_t start, std::int64_t count, std::int64_t to);

  const std::int64_t capacity;
  std::int64_t filled = 0;  // rows that somebody keeps, kept or is writing

 private:
  float *floats() const { return block_ ? block_->floats() : nullptr; }

  const KvGeometry shape_;
  std::shared_ptr<KvMemory> memory_;
  std::unique_ptr<EngineBlock> block_;
  std::int64_t touched_ = 0;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_KV_MEMORY_H
