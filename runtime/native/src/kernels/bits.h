// Bytes as words and floats as bits. Everything is local to the file that includes this.
#ifndef EDGEKIT_KERNELS_BITS_H
#define EDGEKIT_KERNELS_BITS_H

#include <cstdint>
#include <cstring>

#include "kernels/vector_math.h"

namespace edgekit {
namespace {

EK_VECTOR_INLINE std::uint32_t load_u32(const void *p) {
  std::uint32_t x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

EK_VECTOR_INLINE void store_u32(void *p, std::uint32_t x) { std::memcpy(p, &x, sizeof x); }

EK_VECTOR_INLINE std::uint32_t float_bits(float x) { return load_u32(&x); }

EK_VECTOR_INLINE float float_of_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

}  // namespace
}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_BITS_H
