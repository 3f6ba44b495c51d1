// The prefix KV cache: keys and values of committed positions, per layer.
#ifndef EDGEKIT_SESSION_PREFIX_H
#define EDGEKIT_SESSION_PREFIX_H

#include <cstdint>
#include <vector>

#include "flash_file.h"
#include "kernels/float_ops.h"

namespace edgekit {

struct KvGeometry {
  std::int64_t kv_heads = 0, head_dim = 0;
  std::int64_t window = 0;  // 0: all is kept; else the last window - 1 positions
};

// Keys and values of what is kept, [1, KV, P', D], and the absolute position of the first one.
struct PrefixView {
  Strided keys, values;
  std::int64_t length = 0, first = 0;
};

class PrefixCache {
 public:
  // Reserves room for `positions` committed ones that come in chunks of up to `chunk`. Memory that is not written
  // to takes none from the system. Throws Error (EK_OUT_OF_MEMORY).
  PrefixCache(std::vector<KvGeometry> layers, std::int64_t positions, std::int64_t chunk);

  // What that reserves.
  static std::uint64_t bytes(const std::vector<KvGeometry> &layers, std::int64_t positions, std::int64_t chunk);

  std::int64_t length() const noexcept { return length_; }
  void clear();

  PrefixView view(std::size_t layer) const;

  // Where the keys and values of the next `count` positions go; grows beyond what was reserved where necessary.
  // Views of the layer that were taken before are invalid then.
  PrefixView next(std::size_t layer, std::int64_t count);

  // What was written to next() of a layer is part of it; `advance` once all layers have it.
  void append(std::size_t layer, std::int64_t count);
  void advance(std::int64_t count) { length_ += count; }

 private:
  struct Layer {
    AlignedMemory memory;  // keys [KV, capacity, D], then values
    std::int64_t capacity = 0, start = 0, length = 0;
  };

  void reserve(std::size_t layer, std::int64_t capacity);
  PrefixView at(std::size_t layer, std::int64_t start, std::int64_t count) const;

  std::vector<KvGeometry> geometry_;
  std::vector<Layer> layers_;
  std::int64_t length_ = 0;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_PREFIX_H
