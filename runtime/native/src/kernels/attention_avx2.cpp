#include "kernels/attention_block.h"
#include "kernels/vector_math_avx2.h"

namespace edgekit {
namespace {

// 12 of the 16 registers hold sums.
struct Avx2Tile : Avx2Lanes {
  static constexpr int kRows = 6;
  static constexpr int kVectors = 2;

  template <int M, int N>
  EK_VECTOR_INLINE void multiply_add(__m256 (&acc)[M][N], const float *a, const __m256 (&b)[N]) {
    EK_UNROLL for (int m = 0; m < M; ++m) {
      const __m256 one = _mm256_broadcast_ss(a + m);
      EK_UNROLL for (int n = 0; n < N; ++n) acc[m][n] = _mm256_fmadd_ps(one, b[n], acc[m][n]);
    }
  }

  EK_VECTOR_INLINE void transpose(__m256 (&x)[8]) {
    __m256 y[8];
    // 4 x 4 blocks within the halves of four rows, then the halves.
    for (int i = 0; i < 8; i += 4) {
      const __m256 a = _mm256_unpacklo_ps(x[i], x[i + 1]), b = _mm256_unpackhi_ps(x[i], x[i + 1]);
      const __m256 c = _mm256_unpacklo_ps(x[i + 2], x[i + 3]), d = _mm256_unpackhi_ps(x[i + 2], x[i + 3]);
      y[i] = _mm256_shuffle_ps(a, c, 0x44);
      y[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
      y[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
      y[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm256_permute2f128_ps(y[i], y[i + 4], 0x20);
      x[i + 4] = _mm256_permute2f128_ps(y[i], y[i + 4], 0x31);
    }
  }
};

}  // namespace

void attention_avx2(const AttentionTask &task) { Attention<Avx2Tile>(task).run(); }

}  // namespace edgekit
