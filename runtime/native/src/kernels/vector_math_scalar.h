// The operations of vector_math.h on single floats.
#ifndef EDGEKIT_KERNELS_VECTOR_MATH_SCALAR_H
#define EDGEKIT_KERNELS_VECTOR_MATH_SCALAR_H

#include <cstdint>
#include <cstring>

#include "kernels/vector_math.h"

namespace edgekit {
namespace {

struct ScalarLanes {
  using Float = float;
  static constexpr int kWidth = 1;

  EK_VECTOR_INLINE std::uint32_t bits(float x) {
    std::uint32_t out;
    std::memcpy(&out, &x, sizeof out);
    return out;
  }
  EK_VECTOR_INLINE float of_bits(std::uint32_t x) {
    float out;
    std::memcpy(&out, &x, sizeof out);
    return out;
  }

  EK_VECTOR_INLINE float load(const float *p) { return *p; }
  EK_VECTOR_INLINE void store(float *p, float x) { *p = x; }
  // The first `count` elements (0 <= count <= kWidth); the others are 0 and are not touched.
  EK_VECTOR_INLINE float load_first(const float *p, int count) { return count > 0 ? *p : 0.0f; }
  EK_VECTOR_INLINE void store_first(float *p, float x, int count) {
    if (count > 0) *p = x;
  }
  EK_VECTOR_INLINE float set(float x) { return x; }
  EK_VECTOR_INLINE float add(float a, float b) { return a + b; }
  EK_VECTOR_INLINE float sub(float a, float b) { return a - b; }
  EK_VECTOR_INLINE float mul(float a, float b) { return a * b; }
  EK_VECTOR_INLINE float div(float a, float b) { return a / b; }
  // The second operand if one is NaN.
  EK_VECTOR_INLINE float min(float a, float b) { return a < b ? a : b; }
  EK_VECTOR_INLINE float max(float a, float b) { return a > b ? a : b; }
  EK_VECTOR_INLINE float abs(float x) { return of_bits(bits(x) & 0x7fffffffu); }
  // |x| with the sign of `sign`.
  EK_VECTOR_INLINE float copy_sign(float x, float sign) {
    return of_bits((bits(x) & 0x7fffffffu) | (bits(sign) & 0x80000000u));
  }
  // a <= b ? yes : no; `no` if one is NaN.
  EK_VECTOR_INLINE float select_less_equal(float a, float b, float yes, float no) { return a <= b ? yes : no; }
  // What is at p, less `minus`, as floats rounded to nearest.
  EK_VECTOR_INLINE float convert(const std::int32_t *p, std::int32_t minus) { return static_cast<float>(*p - minus); }
  // x * 2^n for the n in the low bits of `rounded`; the result must be a normal number.
  EK_VECTOR_INLINE float add_exponent(float x, float rounded) { return of_bits(bits(x) + (bits(rounded) << 23)); }
};

}  // namespace
}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_VECTOR_MATH_SCALAR_H
