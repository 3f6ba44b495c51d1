#include "kernels/attention_block.h"
#include "kernels/vector_math_avx512.h"

namespace edgekit {
namespace {

// 24 of the 32 registers hold sums.
struct Avx512Tile : Avx512Lanes {
  static constexpr int kRows = 12;
  static constexpr int kVectors = 2;

  template <int M, int N>
  EK_VECTOR_INLINE void multiply_add(__m512 (&acc)[M][N], const float *a, const __m512 (&b)[N]) {
    EK_UNROLL for (int m = 0; m < M; ++m) {
      const __m512 one = _mm512_set1_ps(a[m]);
      EK_UNROLL for (int n = 0; n < N; ++n) acc[m][n] = _mm512_fmadd_ps(one, b[n], acc[m][n]);
    }
  }

  EK_VECTOR_INLINE void transpose(__m512 (&x)[16]) {
    __m512 y[16];
    // 4 x 4 blocks within the quarters of four rows,
    for (int i = 0; i < 16; i += 4) {
      const __m512 a = _mm512_unpacklo_ps(x[i], x[i + 1]), b = _mm512_unpackhi_ps(x[i], x[i + 1]);
      const __m512 c = _mm512_unpacklo_ps(x[i + 2], x[i + 3]), d = _mm512_unpackhi_ps(x[i + 2], x[i + 3]);
      y[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(c)));
      y[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(c)));
      y[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(b), _mm512_castps_pd(d)));
      y[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(b), _mm512_castps_pd(d)));
    }
    // then the quarters of rows that are four apart.
    for (int i = 0; i < 4; ++i) {
      const __m512 a = _mm512_shuffle_f32x4(y[i], y[i + 4], 0x88), b = _mm512_shuffle_f32x4(y[i], y[i + 4], 0xdd);
      const __m512 c = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0x88);
      const __m512 d = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0xdd);
      x[i] = _mm512_shuffle_f32x4(a, c, 0x88);
      x[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
      x[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
      x[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
  }
};

}  // namespace

void attention_avx512(const AttentionTask &task) { Attention<Avx512Tile>(task).run(); }

}  // namespace edgekit
