// Products with the int8 matrix instructions of Armv8.6 (usmmla): two outputs times two rows over eight columns at
// a time, unsigned weights W + 128 with signed activations. A block holds eight columns of an output together.
#include <arm_neon.h>

#include <cstdint>

#include "kernels/gemm_blocks.h"
#include "kernels/gemm_kernels.h"
#include "kernels/gemm_registers.h"
#include "kernels/gemm_rows.h"
#include "kernels/gemm_table.h"
#include "kernels/vector_math_neon.h"

namespace edgekit {
namespace {

constexpr int kTileRows = 8;
constexpr int kVectors = 4;  // registers of 2 outputs at a time: 16 accumulators
constexpr std::int64_t kColumns = kVectors * 2;
constexpr int kFloatTileRows = 4;
constexpr int kFloatVectors = 4;

struct IntVector {
  using V = int32x4_t;
};
struct ByteVector {
  using V = uint8x16_t;
};

// An accumulator holds (output 0, row 0), (0, 1), (1, 0), (1, 1). With an odd number of rows the last pair is the
// same row twice.
template <int Rows>
struct DotTile {
  static void run(const std::int8_t *x, std::int64_t stride, const std::uint8_t *block, std::int64_t quads,
                  std::int32_t *sums, bool accumulate) {
    constexpr int kPairs = (Rows + 1) / 2;
    constexpr std::int64_t kUnitBytes = kPanelRows * 8;
    const std::int64_t units = (quads + 1) / 2;
    for (std::int64_t column = 0; column < kPanelRows; column += kColumns) {
      Tile<IntVector, kPairs, kVectors> tile;
      each_row(tile, [&](int, auto &row) { each(row, [&](int, int32x4_t &sum) { sum = vdupq_n_s32(0); }); });
      const std::uint8_t *codes = block + column * 8;
      for (std::int64_t unit = 0; unit < units; ++unit) {
        Registers<ByteVector, kVectors> weights;
        each(weights, [&](int i, uint8x16_t &w) { w = vld1q_u8(codes + i * 16); });
        each_row(tile, [&](int pair, auto &row) {
          const std::int8_t *first = x + 2 * pair * stride + unit * 8;
          const std::int8_t *second = 2 * pair + 1 < Rows ? first + stride : first;
          const int8x16_t a = vcombine_s8(vld1_s8(first), vld1_s8(second));
          each_pair(row, weights, [&](int, int32x4_t &sum, uint8x16_t &w) { sum = vusmmlaq_s32(sum, w, a); });
        });
        codes += kUnitBytes;
      }
      each_row(tile, [&](int pair, auto &row) {
        store_pair(row, 2 * pair + 1 < Rows, sums + 2 * pair * kPanelRows + column, accumulate);
      });
    }
  }

  static void store_pair(Registers<IntVector, kVectors> &sums, bool both, std::int32_t *to, bool accumulate) {
    store(vuzp1q_s32(sums.first, sums.rest.first), to, accumulate);
    store(vuzp1q_s32(sums.rest.rest.first, sums.rest.rest.rest.first), to + 4, accumulate);
    if (!both) return;
    store(vuzp2q_s32(sums.first, sums.rest.first), to + kPanelRows, accumulate);
    store(vuzp2q_s32(sums.rest.rest.first, sums.rest.rest.rest.first), to + kPanelRows + 4, accumulate);
  }

  static void store(int32x4_t sum, std::int32_t *to, bool accumulate) {
    vst1q_s32(to, accumulate ? vaddq_s32(vld1q_s32(to), sum) : sum);
  }
};

void dot_tile(const std::int8_t *x, std::int64_t stride, std::int64_t rows, const std::uint8_t *block,
              std::int64_t quads, std::int32_t *sums, bool accumulate, const std::uint8_t *) {
  with_rows<DotTile, kTileRows>(rows, x, stride, block, quads, sums, accumulate);
}

constexpr std::int32_t kOffset = 128;

constexpr GemmKernels kernels() {
  GemmKernels k = lane_kernels<NeonLanes, kOffset>("i8mm");
  k.tile_rows = kTileRows;
  k.prepare = prepare_block<8, 0>;
  k.unpack = unpack_block<8, 0>;
  k.pack_rows = pack_rows_block<8, 0>;
  k.pack_columns = pack_columns_block<8, 0>;
  k.tile = dot_tile;
  k.float_tile_rows = kFloatTileRows;
  k.float_tile = float_tile<NeonLanes, kFloatTileRows, kFloatVectors>;
  return k;
}

}  // namespace

const GemmKernels kGemmI8mm = kernels();

}  // namespace edgekit
