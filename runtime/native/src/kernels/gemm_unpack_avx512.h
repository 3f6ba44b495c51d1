// Codes of 4 bits to weights W + 128 in registers of AVX-512 BW. For *_avx512.cpp only.
#ifndef EDGEKIT_KERNELS_GEMM_UNPACK_AVX512_H
#define EDGEKIT_KERNELS_GEMM_UNPACK_AVX512_H

#include <cstdint>

#include "kernels/vector_math.h"
#include "kernels/x86_intrinsics.h"

namespace edgekit {
namespace {

struct IntVector {
  using V = __m512i;
};

// What turns the codes of 16 outputs into W + 128 = code * scale + 128 - 8 * scale. A 16-bit lane holds two codes of
// one output, and neither product with the scale exceeds a byte.
struct Unpacking {
  using V = Unpacking;
  __m512i factor;       // the scale
  __m512i high_factor;  // scale * 2^12: the upper half of a product with upper nibbles is the product with the codes
  __m512i offset;
};

EK_VECTOR_INLINE Unpacking unpacking(const std::uint8_t *group_scales) {
  Unpacking u;
  const void *from = group_scales;
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i *>(from)));
  u.factor = _mm512_or_si512(wide, _mm512_slli_epi32(wide, 16));
  u.high_factor = _mm512_slli_epi16(u.factor, 12);
  const __m512i eight = _mm512_slli_epi16(u.factor, 3);  // 8 * scale, at most 120
  u.offset = _mm512_sub_epi8(_mm512_set1_epi8(static_cast<char>(128)),
                             _mm512_or_si512(eight, _mm512_slli_epi16(eight, 8)));
  return u;
}

// The lower nibbles: three instructions for 64 weights.
EK_VECTOR_INLINE __m512i even_quad(__m512i pair, const Unpacking &u) {
  const __m512i codes = _mm512_and_si512(pair, _mm512_set1_epi8(0x0f));
  return _mm512_add_epi8(_mm512_mullo_epi16(codes, u.factor), u.offset);
}

// The upper ones.
EK_VECTOR_INLINE __m512i odd_quad(__m512i pair, const Unpacking &u) {
  const __m512i codes = _mm512_and_si512(pair, _mm512_set1_epi8(static_cast<char>(0xf0)));
  return _mm512_add_epi8(_mm512_mulhi_epu16(codes, u.high_factor), u.offset);
}

}  // namespace
}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_GEMM_UNPACK_AVX512_H
