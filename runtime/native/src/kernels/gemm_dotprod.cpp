// Products with the dot product instructions of Armv8.2 (sdot): signed weights W, so the codes' top bit is flipped
// while a block is prepared.
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
constexpr int kVectors = 2;  // registers of 4 outputs at a time: 16 accumulators, 8 registers of activations
constexpr std::int64_t kColumns = kVectors * 4;
constexpr int kFloatTileRows = 4;
constexpr int kFloatVectors = 4;

struct IntVector {
  using V = int32x4_t;
};
struct ByteVector {
  using V = int8x16_t;
};

template <int Lane, int Rows>
EK_VECTOR_INLINE void add_quad(Tile<IntVector, Rows, kVectors> &tile, Tile<ByteVector, Rows, 1> &x,
                               const std::uint8_t *codes) {
  Registers<ByteVector, kVectors> weights;
  each(weights, [&](int i, int8x16_t &w) { w = vreinterpretq_s8_u8(vld1q_u8(codes + i * 16)); });
  each_row_pair(tile, x, [&](int, auto &row, auto &a) {
    each_pair(row, weights, [&](int, int32x4_t &sum, int8x16_t &w) { sum = vdotq_laneq_s32(sum, w, a.first, Lane); });
  });
}

template <int Rows>
struct DotTile {
  static void run(const std::int8_t *x, std::int64_t stride, const std::uint8_t *block, std::int64_t quads,
                  std::int32_t *sums, bool accumulate) {
    constexpr std::int64_t kQuadBytes = kPanelRows * kQuad;
    for (std::int64_t column = 0; column < kPanelRows; column += kColumns) {
      Tile<IntVector, Rows, kVectors> tile;
      each_row(tile, [&](int r, auto &row) {
        each(row, [&](int i, int32x4_t &sum) {
          sum = accumulate ? vld1q_s32(sums + r * kPanelRows + column + i * 4) : vdupq_n_s32(0);
        });
      });
      const std::int8_t *from = x;
      const std::uint8_t *codes = block + column * kQuad;
      Tile<ByteVector, Rows, 1> a;
      const auto load = [&] { each_row(a, [&](int r, auto &row) { row.first = vld1q_s8(from + r * stride); }); };
      std::int64_t quad = 0;
      for (; quad + 4 <= quads; quad += 4) {
        load();
        add_quad<0>(tile, a, codes);
        add_quad<1>(tile, a, codes + kQuadBytes);
        add_quad<2>(tile, a, codes + 2 * kQuadBytes);
        add_quad<3>(tile, a, codes + 3 * kQuadBytes);
        from += 16;
        codes += 4 * kQuadBytes;
      }
      if (quad < quads) {
        load();  // activations are readable and zero up to a multiple of 64, weights are not
        add_quad<0>(tile, a, codes);
        if (quad + 1 < quads) add_quad<1>(tile, a, codes + kQuadBytes);
        if (quad + 2 < quads) add_quad<2>(tile, a, codes + 2 * kQuadBytes);
      }
      each_row(tile, [&](int r, auto &row) {
        each(row, [&](int i, int32x4_t &sum) { vst1q_s32(sums + r * kPanelRows + column + i * 4, sum); });
      });
    }
  }
};

void dot_tile(const std::int8_t *x, std::int64_t stride, std::int64_t rows, const std::uint8_t *block,
              std::int64_t quads, std::int32_t *sums, bool accumulate, const std::uint8_t *) {
  with_rows<DotTile, kTileRows>(rows, x, stride, block, quads, sums, accumulate);
}

constexpr std::int32_t kOffset = 0;
constexpr std::uint8_t kFlip = 0x80;

constexpr GemmKernels kernels() {
  GemmKernels k = lane_kernels<NeonLanes, kOffset>("dotprod");
  k.tile_rows = kTileRows;
  k.prepare = prepare_block<4, kFlip>;
  k.unpack = unpack_block<4, kFlip>;
  k.pack_rows = pack_rows_block<4, kFlip>;
  k.pack_columns = pack_columns_block<4, kFlip>;
  k.tile = dot_tile;
  k.float_tile_rows = kFloatTileRows;
  k.float_tile = float_tile<NeonLanes, kFloatTileRows, kFloatVectors>;
  return k;
}

}  // namespace

const GemmKernels kGemmDotprod = kernels();

}  // namespace edgekit
