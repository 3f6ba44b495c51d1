#include "kernels/attention_block.h"
#include "kernels/vector_math_scalar.h"

namespace edgekit {
namespace {

// Without fused multiply-add, which would be a call of a library function on processors that lack it.
struct ScalarTile : ScalarLanes {
  static constexpr int kRows = 3;
  static constexpr int kVectors = 8;

  template <int M, int N>
  EK_VECTOR_INLINE void multiply_add(float (&acc)[M][N], const float *a, const float (&b)[N]) {
    EK_UNROLL for (int m = 0; m < M; ++m) {
      EK_UNROLL for (int n = 0; n < N; ++n) acc[m][n] += a[m] * b[n];
    }
  }
  EK_VECTOR_INLINE void transpose(float (&)[1]) {}
};

}  // namespace

void attention_scalar(const AttentionTask &task) { Attention<ScalarTile>(task).run(); }

}  // namespace edgekit
