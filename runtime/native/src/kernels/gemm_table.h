// The part of a table of kernels that lanes alone decide. Everything is local to the file that includes this.
#ifndef EDGEKIT_KERNELS_GEMM_TABLE_H
#define EDGEKIT_KERNELS_GEMM_TABLE_H

#include <cstdint>

#include "kernels/gemm_blocks.h"
#include "kernels/gemm_kernels.h"
#include "kernels/gemm_rows.h"

namespace edgekit {
namespace {

// Blocks, tiles and how they are packed are left to the caller. `L` as in vector_math.h, `kOffset` as in GemmKernels.
template <typename L, std::int32_t kOffset>
constexpr GemmKernels lane_kernels(const char *name) {
  GemmKernels k = {};
  k.name = name;
  k.offset = kOffset;
  k.finish = finish_rows<L, kOffset>;
  k.finish_gated = finish_gated_rows<L, kOffset>;
  k.finish_mix = finish_mix_rows<L, kOffset>;
  k.quantize_row = quantize_one_row;
  k.split_row = split_one_row;
  k.widen_codes = widen_codes_block;
  k.widen_rows = widen_rows_block;
  k.widen_columns = widen_columns_block;
  k.finish_float = finish_float_rows<L>;
  return k;
}

}  // namespace
}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_GEMM_TABLE_H
