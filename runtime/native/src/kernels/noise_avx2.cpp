// The logarithms on 8 numbers; the products of Philox stay in the integer unit, which is as fast and otherwise idle.
#include "kernels/noise_steps.h"
#include "kernels/vector_math_avx2.h"

namespace edgekit {
namespace {

struct Lanes : Avx2Lanes {
  using Avx2Lanes::sub;
  using Int = __m256i;

  EK_VECTOR_INLINE Int load_int(const std::uint32_t *p) { return _mm256_loadu_si256(reinterpret_cast<const Int *>(p)); }
  EK_VECTOR_INLINE Int set_int(std::int32_t x) { return _mm256_set1_epi32(x); }
  EK_VECTOR_INLINE Int sub(Int a, Int b) { return _mm256_sub_epi32(a, b); }
  EK_VECTOR_INLINE Int shift_right_23(Int x) { return _mm256_srai_epi32(x, 23); }
  EK_VECTOR_INLINE Int shift_left_23(Int x) { return _mm256_slli_epi32(x, 23); }
  EK_VECTOR_INLINE Int odd_of_half(Int x) { return _mm256_or_si256(_mm256_srli_epi32(x, 7), _mm256_set1_epi32(1)); }
  EK_VECTOR_INLINE Int bits(Float x) { return _mm256_castps_si256(x); }
  EK_VECTOR_INLINE Float from_bits(Int x) { return _mm256_castsi256_ps(x); }
  EK_VECTOR_INLINE Float to_float(Int x) { return _mm256_cvtepi32_ps(x); }
  EK_VECTOR_INLINE Float negate(Float x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f)); }
  EK_VECTOR_INLINE Float where_zero(Int k, Float yes, Float no) {
    return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(_mm256_cmpeq_epi32(k, _mm256_setzero_si256())));
  }
};

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

const NoiseKernels kNoiseAvx2 = {"avx2", philox, gumbel, gumbel_of_blocks};

}  // namespace edgekit
