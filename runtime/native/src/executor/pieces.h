// Scratch memory that is handed out piece by piece.
#ifndef EDGEKIT_EXECUTOR_PIECES_H
#define EDGEKIT_EXECUTOR_PIECES_H

#include <cstddef>
#include <cstdint>

namespace edgekit {

// Every piece begins at a cache line; with a null base it only counts.
class Pieces {
 public:
  explicit Pieces(void *base = nullptr) : base_(static_cast<std::uint8_t *>(base)) {}

  template <typename T>
  T *take(std::int64_t count) {
    return static_cast<T *>(take_bytes(sizeof(T) * static_cast<std::size_t>(count)));
  }

  void *take_bytes(std::size_t bytes) {
    void *piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    return piece;
  }

  std::size_t used() const { return used_; }

 private:
  std::uint8_t *base_;
  std::size_t used_ = 0;
};

}  // namespace edgekit

#endif  // EDGEKIT_EXECUTOR_PIECES_H
