// Products in plain C++, for any processor and as the yardstick of the others.
#include <cstdint>

#include "kernels/gemm_blocks.h"
#include "kernels/gemm_kernels.h"
#include "kernels/gemm_rows.h"
#include "kernels/gemm_table.h"
#include "kernels/vector_math_scalar.h"

namespace edgekit {
namespace {

void dot_tile(const std::int8_t *x, std::int64_t, std::int64_t, const std::uint8_t *block, std::int64_t quads,
              std::int32_t *sums, bool accumulate, const std::uint8_t *) {
  std::int32_t total[kPanelRows];
  for (std::int64_t row = 0; row < kPanelRows; ++row) total[row] = accumulate ? sums[row] : 0;
  for (std::int64_t quad = 0; quad < quads; ++quad) {
    const std::uint8_t *codes = block + place<4>(quad, 0);
    const std::int32_t a = x[quad * kQuad], b = x[quad * kQuad + 1], c = x[quad * kQuad + 2], d = x[quad * kQuad + 3];
    for (std::int64_t row = 0; row < kPanelRows; ++row) {
      const std::uint32_t four = load_u32(codes + row * kQuad);
      const auto byte = [&](int i) { return static_cast<std::int32_t>((four >> (8 * i)) & 0xff); };
      total[row] += byte(0) * a + byte(1) * b + byte(2) * c + byte(3) * d;
    }
  }
  for (std::int64_t row = 0; row < kPanelRows; ++row) sums[row] = total[row];
}

void float_tile(const float *x, std::int64_t, std::int64_t, const float *panel, std::int64_t depth, float *sums,
                bool accumulate) {
  float total[kPanelRows] = {};
  for (std::int64_t k = 0; k < depth; ++k) {
    for (std::int64_t row = 0; row < kPanelRows; ++row) total[row] += x[k] * panel[k * kPanelRows + row];
  }
  for (std::int64_t row = 0; row < kPanelRows; ++row) sums[row] = accumulate ? sums[row] + total[row] : total[row];
}

constexpr std::int32_t kOffset = 128;

constexpr GemmKernels kernels() {
  GemmKernels k = lane_kernels<ScalarLanes, kOffset>("scalar");
  k.tile_rows = 1;
  k.unpack = unpack_block<4, 0>;
  k.pack_rows = pack_rows_block<4, 0>;
  k.pack_columns = pack_columns_block<4, 0>;
  k.tile = dot_tile;
  k.float_tile_rows = 1;
  k.float_tile = float_tile;
  return k;
}

}  // namespace

const GemmKernels kGemmScalar = kernels();

}  // namespace edgekit
