// Products with AVX2 and no VNNI. vpmaddubsw would saturate on W + 128, so both factors are widened to 16 bits and
// multiplied by vpmaddwd. Bytes are widened in place: the even bytes of the 32-bit lane of an output become its
// lower halves (columns 0 and 2 of the quad), the odd ones come down by a shift (columns 1 and 3).
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

constexpr int kTileRows = 4;
constexpr int kFloatTileRows = 6;
constexpr int kVectors = 2;  // registers of 8 outputs at a time
constexpr std::int64_t kColumns = kVectors * 8;

// A row of activations as words of two 16-bit values: columns 0 and 2 of a quad, then columns 1 and 3.
void widen_activations(const std::int8_t *x, std::int64_t quads, std::uint32_t *out) {
  for (std::int64_t quad = 0; quad < quads; ++quad) {
    const std::int8_t *four = x + quad * kQuad;
    const auto pair = [](std::int8_t low, std::int8_t high) {
      return static_cast<std::uint32_t>(static_cast<std::uint16_t>(low)) |
             static_cast<std::uint32_t>(static_cast<std::uint16_t>(high)) << 16;
    };
    out[2 * quad] = pair(four[0], four[2]);
    out[2 * quad + 1] = pair(four[1], four[3]);
  }
}

template <int Rows>
struct DotTile {
  static void run(const std::int8_t *x, std::int64_t stride, const std::uint8_t *block, std::int64_t quads,
                  std::int32_t *sums, bool accumulate) {
    constexpr std::int64_t kWordStride = kBlockQuads * 2;
    std::uint32_t words[Rows * kWordStride];
    for (int r = 0; r < Rows; ++r) widen_activations(x + r * stride, quads, words + r * kWordStride);
    for (std::int64_t column = 0; column < kPanelRows; column += kColumns) {
      Tile<IntVector, Rows, kVectors> tile;
      load_sums(tile, sums, column, accumulate);
      const std::uint32_t *a = words;
      const std::uint8_t *b = block + column * kQuad;
      for (std::int64_t quad = 0; quad < quads; ++quad) {
        Registers<IntVector, kVectors> even, odd;
        each_pair(even, odd, [&](int i, __m256i &e, __m256i &o) {
          const __m256i codes = _mm256_load_si256(reinterpret_cast<const __m256i *>(b + i * 32));
          e = _mm256_and_si256(codes, _mm256_set1_epi16(0xff));
          o = _mm256_srli_epi16(codes, 8);
        });
        each_row(tile, [&](int r, auto &row) {
          const __m256i even_x = _mm256_set1_epi32(static_cast<int>(a[r * kWordStride]));
          each_pair(row, even, [&](int, __m256i &sum, __m256i &w) {
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(w, even_x));
          });
          const __m256i odd_x = _mm256_set1_epi32(static_cast<int>(a[r * kWordStride + 1]));
          each_pair(row, odd, [&](int, __m256i &sum, __m256i &w) {
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(w, odd_x));
          });
        });
        a += 2;
        b += kPanelRows * kQuad;
      }
      store_sums(tile, sums, column);
    }
  }
};

void dot_tile(const std::int8_t *x, std::int64_t stride, std::int64_t rows, const std::uint8_t *block,
              std::int64_t quads, std::int32_t *sums, bool accumulate, const std::uint8_t *) {
  with_rows<DotTile, kTileRows>(rows, x, stride, block, quads, sums, accumulate);
}

constexpr std::int32_t kOffset = 128;

constexpr GemmKernels kernels() {
  GemmKernels k = lane_kernels<Avx2Lanes, kOffset>("avx2");
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

const GemmKernels kGemmAvx2 = kernels();

}  // namespace edgekit
