#if defined(__aarch64__) || defined(_M_ARM64)

#include "kernels/attention_block.h"
#include "kernels/vector_math_neon.h"

namespace edgekit {
namespace {

// 24 of the 32 registers hold sums.
struct NeonTile : NeonLanes {
  static constexpr int kRows = 12;
  static constexpr int kVectors = 2;

  template <int M, int N>
  EK_VECTOR_INLINE void multiply_add(float32x4_t (&acc)[M][N], const float *a, const float32x4_t (&b)[N]) {
    static_assert(M % 4 == 0, "four rows share a register of single numbers");
    EK_UNROLL for (int m = 0; m < M; m += 4) {
      const float32x4_t four = vld1q_f32(a + m);
      EK_UNROLL for (int n = 0; n < N; ++n) {
        acc[m][n] = vfmaq_laneq_f32(acc[m][n], b[n], four, 0);
        acc[m + 1][n] = vfmaq_laneq_f32(acc[m + 1][n], b[n], four, 1);
        acc[m + 2][n] = vfmaq_laneq_f32(acc[m + 2][n], b[n], four, 2);
        acc[m + 3][n] = vfmaq_laneq_f32(acc[m + 3][n], b[n], four, 3);
      }
    }
  }

  EK_VECTOR_INLINE void transpose(float32x4_t (&x)[4]) {
    const float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(x[0], x[1]));
    const float64x2_t b = vreinterpretq_f64_f32(vtrn2q_f32(x[0], x[1]));
    const float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(x[2], x[3]));
    const float64x2_t d = vreinterpretq_f64_f32(vtrn2q_f32(x[2], x[3]));
    x[0] = vreinterpretq_f32_f64(vzip1q_f64(a, c));
    x[1] = vreinterpretq_f32_f64(vzip1q_f64(b, d));
    x[2] = vreinterpretq_f32_f64(vzip2q_f64(a, c));
    x[3] = vreinterpretq_f32_f64(vzip2q_f64(b, d));
  }
};

}  // namespace

void attention_neon(const AttentionTask &task) { Attention<NeonTile>(task).run(); }

}  // namespace edgekit

#endif
