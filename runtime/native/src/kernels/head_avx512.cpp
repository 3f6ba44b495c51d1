// The vocabulary head on 16 numbers.
#include "kernels/head_rows.h"
#include "kernels/vector_math_avx512.h"

namespace edgekit {
namespace {

struct Lanes : Avx512Lanes {
  EK_VECTOR_INLINE void transpose(__m512 (&x)[16]) {
    __m512 a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
      a[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
      a[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    // b[i + j] holds, in its four quarters q, column 4q + j of rows i..i+3.
    for (int i = 0; i < 16; i += 4) {
      b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
      b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xEE);
      b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
      b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xEE);
    }
    for (int j = 0; j < 4; ++j) {
      a[j] = _mm512_shuffle_f32x4(b[j], b[4 + j], 0x88);           // quarters 0, 2 of rows 0..7
      a[4 + j] = _mm512_shuffle_f32x4(b[j], b[4 + j], 0xDD);       // quarters 1, 3
      a[8 + j] = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0x88);  // of rows 8..15
      a[12 + j] = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0xDD);
    }
    for (int j = 0; j < 4; ++j) {
      x[j] = _mm512_shuffle_f32x4(a[j], a[8 + j], 0x88);
      x[4 + j] = _mm512_shuffle_f32x4(a[4 + j], a[12 + j], 0x88);
      x[8 + j] = _mm512_shuffle_f32x4(a[j], a[8 + j], 0xDD);
      x[12 + j] = _mm512_shuffle_f32x4(a[4 + j], a[12 + j], 0xDD);
    }
  }
};

}  // namespace

const HeadKernels kHeadAvx512 = {"avx512", head_scale<Lanes>, head_largest<Lanes>, head_exponentials<Lanes>,
                                 head_drop<Lanes>, head_sample<Lanes>};

}  // namespace edgekit
