// The operations of vector_math.h on 8 floats with AVX2. For *_avx2.cpp and *_avxvnni.cpp only.
#ifndef EDGEKIT_KERNELS_VECTOR_MATH_AVX2_H
#define EDGEKIT_KERNELS_VECTOR_MATH_AVX2_H

#include "kernels/vector_math.h"
#include "kernels/x86_intrinsics.h"

namespace edgekit {
namespace {

struct Avx2Lanes {
  using Float = __m256;
  static constexpr int kWidth = 8;

  EK_VECTOR_INLINE __m256 load(const float *p) { return _mm256_loadu_ps(p); }
  EK_VECTOR_INLINE void store(float *p, __m256 x) { _mm256_storeu_ps(p, x); }
  // The first `count` elements (0 <= count <= kWidth); the others are 0 and are not touched.
  EK_VECTOR_INLINE __m256 load_first(const float *p, int count) { return _mm256_maskload_ps(p, first(count)); }
  EK_VECTOR_INLINE void store_first(float *p, __m256 x, int count) { _mm256_maskstore_ps(p, first(count), x); }
  EK_VECTOR_INLINE __m256i first(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  EK_VECTOR_INLINE __m256 set(float x) { return _mm256_set1_ps(x); }
  EK_VECTOR_INLINE __m256 add(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
  EK_VECTOR_INLINE __m256 sub(__m256 a, __m256 b) { return _mm256_sub_ps(a, b); }
  EK_VECTOR_INLINE __m256 mul(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
  EK_VECTOR_INLINE __m256 div(__m256 a, __m256 b) { return _mm256_div_ps(a, b); }
  // The second operand if one is NaN.
  EK_VECTOR_INLINE __m256 min(__m256 a, __m256 b) { return _mm256_min_ps(a, b); }
  EK_VECTOR_INLINE __m256 max(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
  EK_VECTOR_INLINE __m256 abs(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
  // |x| with the sign of `sign`.
  EK_VECTOR_INLINE __m256 copy_sign(__m256 x, __m256 sign) {
    return _mm256_or_ps(abs(x), _mm256_and_ps(_mm256_set1_ps(-0.0f), sign));
  }
  // a <= b ? yes : no; `no` if one is NaN.
  EK_VECTOR_INLINE __m256 select_less_equal(__m256 a, __m256 b, __m256 yes, __m256 no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LE_OQ));
  }
  // What is at p, less `minus`, as floats rounded to nearest.
  EK_VECTOR_INLINE __m256 convert(const std::int32_t *p, std::int32_t minus) {
    return _mm256_cvtepi32_ps(
        _mm256_sub_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)), _mm256_set1_epi32(minus)));
  }
  // x * 2^n for the n in the low bits of `rounded`; the result must be a normal number.
  EK_VECTOR_INLINE __m256 add_exponent(__m256 x, __m256 rounded) {
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_castps_si256(rounded), 23)));
  }
};

}  // namespace
}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_VECTOR_MATH_AVX2_H
