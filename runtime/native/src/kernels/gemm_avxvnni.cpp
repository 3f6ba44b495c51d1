// Products with the 256-bit vpdpbusd of AVX-VNNI (processors without AVX-512).
#include <cstdint>

#include "kernels/gemm_blocks.h"
#include "kernels/gemm_kernels.h"
#include "kernels/gemm_registers.h"
#include "kernels/gemm_rows.h"
#include "kernels/gemm_sums_avx2.h"
#include "kernels/gemm_table.h"
#include "kernels/vector_math_avx2.h"
#include "kernels/x86_intrinsics.h"

namespace edgekit {
namespace {

constexpr int kTileRows = 6;
constexpr int kFloatTileRows = 6;
constexpr int kVectors = 2;  // registers of 8 outputs at a time: 12 accumulators of the 16 registers
constexpr std::int64_t kColumns = kVectors * 8;

template <int Rows>
struct DotTile {
  static void run(const std::int8_t *x, std::int64_t stride, const std::uint8_t *block, std::int64_t quads,
                  std::int32_t *sums, bool accumulate, const std::uint8_t *ahead) {
    const char *line = reinterpret_cast<const char *>(ahead ? ahead : block);
    std::int64_t step = ahead ? 64 : 0;
    for (std::int64_t column = 0; column < kPanelRows; column += kColumns) {
      Tile<IntVector, Rows, kVectors> tile;
      load_sums(tile, sums, column, accumulate);
      const std::int8_t *a = x;
      const std::uint8_t *b = block + column * kQuad;
      for (std::int64_t quad = 0; quad < quads; ++quad) {
        Registers<IntVector, kVectors> weights;
        each(weights, [&](int i, __m256i &w) { w = _mm256_load_si256(reinterpret_cast<const __m256i *>(b + i * 32)); });
        each_row(tile, [&](int r, auto &row) {
          const __m256i four = _mm256_set1_epi32(static_cast<int>(load_u32(a + r * stride)));
          each_pair(row, weights, [&](int, __m256i &sum, __m256i &w) { sum = _mm256_dpbusd_avx_epi32(sum, w, four); });
        });
        _mm_prefetch(line, _MM_HINT_T1);
        line += step;
        a += kQuad;
        b += kPanelRows * kQuad;
      }
      step = 0;
      store_sums(tile, sums, column);
    }
  }
};

void dot_tile(const std::int8_t *x, std::int64_t stride, std::int64_t rows, const std::uint8_t *block,
              std::int64_t quads, std::int32_t *sums, bool accumulate, const std::uint8_t *ahead) {
  with_rows<DotTile, kTileRows>(rows, x, stride, block, quads, sums, accumulate, ahead);
}

constexpr std::int32_t kOffset = 128;

constexpr GemmKernels kernels() {
  GemmKernels k = lane_kernels<Avx2Lanes, kOffset>("avxvnni");
  k.tile_rows = kTileRows;
  k.unpack = unpack_block<4, 0>;
  k.pack_rows = pack_rows_block<4, 0>;
  k.pack_columns = pack_columns_block<4, 0>;
  k.tile = dot_tile;
  k.float_tile_rows = kFloatTileRows;
  k.float_tile = float_tile<Avx2Lanes, kFloatTileRows, kVectors>;
  return k;
}

}  // namespace

const GemmKernels kGemmAvxVnni = kernels();

}  // namespace edgekit
