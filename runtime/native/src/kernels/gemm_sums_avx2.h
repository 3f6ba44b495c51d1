// Accumulators of 8 sums each in the 256-bit kernels, and the memory they are kept in between blocks.
#ifndef EDGEKIT_KERNELS_GEMM_SUMS_AVX2_H
#define EDGEKIT_KERNELS_GEMM_SUMS_AVX2_H

#include <cstdint>

#include "kernels/gemm_registers.h"
#include "kernels/x86_intrinsics.h"

namespace edgekit {
namespace {

struct IntVector {
  using V = __m256i;
};

template <int Rows, int Vectors>
EK_VECTOR_INLINE void load_sums(Tile<IntVector, Rows, Vectors> &tile, const std::int32_t *sums, std::int64_t column,
                                bool accumulate) {
  each_row(tile, [&](int r, auto &row) {
    each(row, [&](int i, __m256i &sum) {
      const void *from = sums + r * kPanelRows + column + i * 8;
      sum = accumulate ? _mm256_load_si256(static_cast<const __m256i *>(from)) : _mm256_setzero_si256();
    });
  });
}

template <int Rows, int Vectors>
EK_VECTOR_INLINE void store_sums(Tile<IntVector, Rows, Vectors> &tile, std::int32_t *sums, std::int64_t column) {
  each_row(tile, [&](int r, auto &row) {
    each(row, [&](int i, __m256i &sum) {
      void *to = sums + r * kPanelRows + column + i * 8;
      _mm256_store_si256(static_cast<__m256i *>(to), sum);
    });
  });
}

}  // namespace
}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_GEMM_SUMS_AVX2_H
