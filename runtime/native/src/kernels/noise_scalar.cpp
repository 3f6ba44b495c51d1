// The noise on single numbers.
#include <cstring>

#include "kernels/noise_steps.h"
#include "kernels/vector_math_scalar.h"

namespace edgekit {
namespace {

struct Lanes : ScalarLanes {
  using ScalarLanes::sub;
  using Int = std::int32_t;

  EK_VECTOR_INLINE Int load_int(const std::uint32_t *p) { return static_cast<Int>(*p); }
  EK_VECTOR_INLINE Int set_int(std::int32_t x) { return x; }
  EK_VECTOR_INLINE Int sub(Int a, Int b) { return a - b; }
  EK_VECTOR_INLINE Int shift_right_23(Int x) { return x >> 23; }
  EK_VECTOR_INLINE Int shift_left_23(Int x) { return static_cast<Int>(static_cast<std::uint32_t>(x) << 23); }
  EK_VECTOR_INLINE Int odd_of_half(Int x) { return static_cast<Int>((static_cast<std::uint32_t>(x) >> 7) | 1u); }
  EK_VECTOR_INLINE Int bits(float x) { return static_cast<Int>(ScalarLanes::bits(x)); }
  EK_VECTOR_INLINE float from_bits(Int x) { return of_bits(static_cast<std::uint32_t>(x)); }
  EK_VECTOR_INLINE float to_float(Int x) { return static_cast<float>(x); }
  EK_VECTOR_INLINE float negate(float x) { return -x; }
  EK_VECTOR_INLINE float where_zero(Int k, float yes, float no) { return k == 0 ? yes : no; }
};

// Compilers make vectors of the baseline instruction set of this many.
constexpr int kVectors = 8;

void philox(const PhiloxKey &key, std::uint64_t first, std::int64_t count, std::uint64_t *words) {
  philox_array(key, first, count, words);
}

void gumbel(const std::uint32_t *halves, std::int64_t count, float *out) {
  gumbel_array<Lanes, kVectors>(halves, count, out);
}

void gumbel_of_blocks(const PhiloxKey &key, std::uint64_t first, std::int64_t count, float *out) {
  gumbel_blocks<Lanes, kVectors>(key, first, count, out);
}

}  // namespace

const NoiseKernels kNoiseScalar = {"scalar", philox, gumbel, gumbel_of_blocks};

}  // namespace edgekit
