// Keys or values of the caller as the core takes them.
#ifndef EDGEKIT_TESTING_KV_ARRAY_H
#define EDGEKIT_TESTING_KV_ARRAY_H

#include <algorithm>
#include <cstdint>

#include "kernels/float_ops.h"

namespace edgekit {

// [1, heads, length, width], contiguous.
inline Strided kv_array(const float *data, std::int64_t heads, std::int64_t length, std::int64_t width) {
  Strided out;
  out.data = const_cast<float *>(data);
  const std::int64_t shape[] = {1, heads, length, width};
  const std::int64_t stride[] = {heads * length * width, length * width, width, 1};
  std::copy(shape, shape + 4, out.shape);
  std::copy(stride, stride + 4, out.stride);
  return out;
}

}  // namespace edgekit

#endif  // EDGEKIT_TESTING_KV_ARRAY_H
