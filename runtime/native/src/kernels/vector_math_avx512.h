// The operations of vector_math.h on 16 floats with AVX-512 F and DQ. For *_avx512.cpp only.
#ifndef EDGEKIT_KERNELS_VECTOR_MATH_AVX512_H
#define EDGEKIT_KERNELS_VECTOR_MATH_AVX512_H

#include "kernels/vector_math.h"
#include "kernels/x86_intrinsics.h"

namespace edgekit {
namespace {

struct Avx512Lanes {
  using Float = __m512;
  static constexpr int kWidth = 16;

  EK_VECTOR_INLINE __m512 load(const float *p) { return _mm512_loadu_ps(p); }
  EK_VECTOR_INLINE void store(float *p, __m512 x) { _mm512_storeu_ps(p, x); }
  // The first `count` elements (0 <= count <= kWidth); the others are 0 and are not touched.
  EK_VECTOR_INLINE __m512 load_first(const float *p, int count) { return _mm512_maskz_loadu_ps(first(count), p); }
  EK_VECTOR_INLINE void store_first(float *p, __m512 x, int count) { _mm512_mask_storeu_ps(p, first(count), x); }
  EK_VECTOR_INLINE __mmask16 first(int count) { return static_cast<__mmask16>((1u << count) - 1u); }
  EK_VECTOR_INLINE __m512 set(float x) { return _mm512_set1_ps(x); }
  EK_VECTOR_INLINE __m512 add(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
  EK_VECTOR_INLINE __m512 sub(__m512 a, __m512 b) { return _mm512_sub_ps(a, b); }
  EK_VECTOR_INLINE __m512 mul(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
  EK_VECTOR_INLINE __m512 div(__m512 a, __m512 b) { return _mm512_div_ps(a, b); }
  // The second operand if one is NaN.
  EK_VECTOR_INLINE __m512 min(__m512 a, __m512 b) { return _mm512_min_ps(a, b); }
  EK_VECTOR_INLINE __m512 max(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
  EK_VECTOR_INLINE __m512 abs(__m512 x) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)));
  }
  // |x| with the sign of `sign`. The truth table of the ternary operation is "mask ? x : sign".
  EK_VECTOR_INLINE __m512 copy_sign(__m512 x, __m512 sign) {
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_set1_epi32(0x7fffffff), _mm512_castps_si512(x),
                                                         _mm512_castps_si512(sign), 0xca));
  }
  // a <= b ? yes : no; `no` if one is NaN.
  EK_VECTOR_INLINE __m512 select_less_equal(__m512 a, __m512 b, __m512 yes, __m512 no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LE_OQ), no, yes);
  }
  // What is at p, less `minus`, as floats rounded to nearest.
  EK_VECTOR_INLINE __m512 convert(const std::int32_t *p, std::int32_t minus) {
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(p), _mm512_set1_epi32(minus)));
  }
  // x * 2^n for the n in the low bits of `rounded`; the result must be a normal number.
  EK_VECTOR_INLINE __m512 add_exponent(__m512 x, __m512 rounded) {
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_castps_si512(rounded), 23)));
  }
};

}  // namespace
}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_VECTOR_MATH_AVX512_H
