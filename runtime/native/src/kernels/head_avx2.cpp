// The vocabulary head on 8 numbers.
#include "kernels/head_rows.h"
#include "kernels/vector_math_avx2.h"

namespace edgekit {
namespace {

struct Lanes : Avx2Lanes {
  EK_VECTOR_INLINE void transpose(__m256 (&x)[8]) {
    __m256 pairs[8], quads[8];
    for (int i = 0; i < 8; i += 2) {
      pairs[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
      pairs[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
      quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
      quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
      quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
    }
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
      x[i + 4] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
    }
  }
};

}  // namespace

const HeadKernels kHeadAvx2 = {"avx2", head_scale<Lanes>, head_largest<Lanes>, head_exponentials<Lanes>,
                               head_drop<Lanes>, head_sample<Lanes>};

}  // namespace edgekit
