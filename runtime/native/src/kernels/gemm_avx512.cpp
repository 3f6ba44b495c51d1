// Products with AVX-512 VNNI: vpdpbusd multiplies unsigned weights W + 128 with signed activations.
#include <cstddef>
#include <cstdint>

#include "kernels/gemm_blocks.h"
#include "kernels/gemm_kernels.h"
#include "kernels/gemm_registers.h"
#include "kernels/gemm_rows.h"
#include "kernels/gemm_table.h"
#include "kernels/gemm_unpack_avx512.h"
#include "kernels/vector_math_avx512.h"
#include "kernels/x86_intrinsics.h"

namespace edgekit {
namespace {

constexpr int kTileRows = 6;
constexpr int kVectors = 4;  // registers of 16 outputs in a panel

// 24 accumulators, 4 registers of weights and one of activations.
template <int Rows>
struct DotTile {
  static void run(const std::int8_t *x, std::int64_t stride, const std::uint8_t *block, std::int64_t quads,
                  std::int32_t *sums, bool accumulate, const std::uint8_t *ahead) {
    Tile<IntVector, Rows, kVectors> tile;
    if (accumulate) {
      each_row(tile, [&](int r, auto &row) {
        each(row, [&](int i, __m512i &sum) { sum = _mm512_load_si512(sums + r * kPanelRows + i * 16); });
      });
    } else {
      each_row(tile, [&](int, auto &row) { each(row, [&](int, __m512i &sum) { sum = _mm512_setzero_si512(); }); });
    }
    const char *line = reinterpret_cast<const char *>(ahead ? ahead : block);
    const std::int64_t step = ahead ? 64 : 0;
    for (std::int64_t quad = 0; quad < quads; ++quad) {
      Registers<IntVector, kVectors> weights;
      each(weights, [&](int i, __m512i &w) { w = _mm512_load_si512(block + i * 64); });
      each_row(tile, [&](int r, auto &row) {
        const __m512i a = _mm512_set1_epi32(static_cast<int>(load_u32(x + r * stride)));
        each_pair(row, weights, [&](int, __m512i &sum, __m512i &w) { sum = _mm512_dpbusd_epi32(sum, w, a); });
      });
      _mm_prefetch(line, _MM_HINT_T1);
      line += step;
      x += kQuad;
      block += kPanelRows * kQuad;
    }
    each_row(tile, [&](int r, auto &row) {
      each(row, [&](int i, __m512i &sum) { _mm512_store_si512(sums + r * kPanelRows + i * 16, sum); });
    });
  }
};

void dot_tile(const std::int8_t *x, std::int64_t stride, std::int64_t rows, const std::uint8_t *block,
              std::int64_t quads, std::int32_t *sums, bool accumulate, const std::uint8_t *ahead) {
  with_rows<DotTile, kTileRows>(rows, x, stride, block, quads, sums, accumulate, ahead);
}

void unpack(const std::uint8_t *panel, const std::uint8_t *group_scales, std::int64_t first_quad, std::int64_t quads,
            std::int64_t group_quads, std::uint8_t *block) {
  const std::uint8_t *packed = panel + first_quad / 2 * (kPanelRows * kQuad);
  const std::uint8_t *scales = group_scales + first_quad / group_quads * kPanelRows;
  std::int64_t group_end = (first_quad / group_quads + 1) * group_quads - first_quad;
  for (std::int64_t quad = 0; quad < quads; group_end += group_quads, scales += kPanelRows) {
    const std::int64_t end = group_end < quads ? group_end : quads;
    Registers<Unpacking, kVectors> how;
    each(how, [&](int i, Unpacking &u) { u = unpacking(scales + i * 16); });
    for (; quad < end; quad += 2) {
      each(how, [&](int i, Unpacking &u) {
        const __m512i pair = _mm512_loadu_si512(packed + i * 64);
        _mm512_store_si512(block + i * 64, even_quad(pair, u));
        _mm512_store_si512(block + (i + kVectors) * 64, odd_quad(pair, u));
      });
      packed += kPanelRows * kQuad;
      block += 2 * kPanelRows * kQuad;
    }
  }
}

// 16 rows of 16 quads each become 16 quads of 16 rows.
EK_VECTOR_INLINE void transpose_quads(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4) {
    const __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    const __m512i b = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    const __m512i c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]);
    const __m512i d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
    t[i] = _mm512_unpacklo_epi64(a, c);
    t[i + 1] = _mm512_unpackhi_epi64(a, c);
    t[i + 2] = _mm512_unpacklo_epi64(b, d);
    t[i + 3] = _mm512_unpackhi_epi64(b, d);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
    const __m512i c = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
    const __m512i d = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
    r[i] = _mm512_shuffle_i32x4(a, b, 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(a, b, 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(c, d, 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(c, d, 0xdd);
  }
}

void pack_rows(const std::uint8_t *rows, std::int64_t stride, std::int64_t count, std::int64_t columns,
               std::uint8_t *block) {
  const __m512i zero_weight = _mm512_set1_epi8(static_cast<char>(128));
  for (std::int64_t column = 0; column < columns; column += 64) {
    const std::int64_t left = columns - column;
    const std::int64_t quads = left < 64 ? (left + kQuad - 1) / kQuad : 16;
    const __mmask64 present = left < 64 ? (std::uint64_t{1} << left) - 1 : ~std::uint64_t{0};
    for (std::int64_t first = 0; first < kPanelRows; first += 16) {
      __m512i r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        r[i] = first + i < count
                   ? _mm512_mask_loadu_epi8(zero_weight, present, rows + (first + i) * stride + column)
                   : zero_weight;
      }
      transpose_quads(r);
      std::uint8_t *to = block + column / kQuad * (kPanelRows * kQuad) + first * kQuad;
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        if (i < quads) _mm512_store_si512(to + i * (kPanelRows * kQuad), r[i]);
      }
    }
  }
}

// 16 rows of 16 floats are transposed like quads.
void widen_rows(const std::uint16_t *rows, std::int64_t stride, std::int64_t count, std::int64_t columns,
                float *panel) {
  for (std::int64_t column = 0; column < columns; column += 16) {
    const int present = columns - column < 16 ? static_cast<int>(columns - column) : 16;
    const __mmask16 mask = Avx512Lanes::first(present);
    for (std::int64_t first = 0; first < kPanelRows; first += 16) {
      __m512i r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        r[i] = _mm512_setzero_si512();
        if (first + i < count) {
          const __m256i narrow = _mm256_maskz_loadu_epi16(mask, rows + (first + i) * stride + column);
          r[i] = _mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16);
        }
      }
      transpose_quads(r);
      float *to = panel + column * kPanelRows + first;
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        if (i < present) _mm512_store_si512(to + i * kPanelRows, r[i]);
      }
    }
  }
}

// Four rows of 64 bytes each become 64 quads.
void pack_columns(const std::uint8_t *rows, std::int64_t stride, std::int64_t depth, std::int64_t count,
                  std::uint8_t *block) {
  const __m512i zero_weight = _mm512_set1_epi8(static_cast<char>(128));
  const __mmask64 present = count < 64 ? (std::uint64_t{1} << count) - 1 : ~std::uint64_t{0};
  const auto line = [&](std::int64_t k) {
    return k < depth ? _mm512_mask_loadu_epi8(zero_weight, present, rows + k * stride) : zero_weight;
  };
  for (std::int64_t k = 0; k < depth; k += kQuad) {
    const __m512i r0 = line(k), r1 = line(k + 1), r2 = line(k + 2), r3 = line(k + 3);
    const __m512i a = _mm512_unpacklo_epi8(r0, r1), b = _mm512_unpackhi_epi8(r0, r1);
    const __m512i c = _mm512_unpacklo_epi8(r2, r3), d = _mm512_unpackhi_epi8(r2, r3);
    // Each 128-bit lane holds four quads of its sixteenth of the columns.
    const __m512i q0 = _mm512_unpacklo_epi16(a, c), q1 = _mm512_unpackhi_epi16(a, c);
    const __m512i q2 = _mm512_unpacklo_epi16(b, d), q3 = _mm512_unpackhi_epi16(b, d);
    const __m512i e = _mm512_shuffle_i32x4(q0, q1, 0x44), f = _mm512_shuffle_i32x4(q2, q3, 0x44);
    const __m512i g = _mm512_shuffle_i32x4(q0, q1, 0xee), h = _mm512_shuffle_i32x4(q2, q3, 0xee);
    _mm512_store_si512(block, _mm512_shuffle_i32x4(e, f, 0x88));
    _mm512_store_si512(block + 64, _mm512_shuffle_i32x4(e, f, 0xdd));
    _mm512_store_si512(block + 128, _mm512_shuffle_i32x4(g, h, 0x88));
    _mm512_store_si512(block + 192, _mm512_shuffle_i32x4(g, h, 0xdd));
    block += kPanelRows * kQuad;
  }
}

constexpr std::int32_t kOffset = 128;

constexpr GemmKernels kernels() {
  GemmKernels k = lane_kernels<Avx512Lanes, kOffset>("avx512vnni");
  k.tile_rows = kTileRows;
  k.unpack = unpack;
  k.pack_rows = pack_rows;
  k.pack_columns = pack_columns;
  k.tile = dot_tile;
  k.packed_tile_rows = kPackedRows;
  k.packed_tile = packed_tile_avx512;
  k.float_tile_rows = kTileRows;
  k.widen_rows = widen_rows;
  k.float_tile = float_tile<Avx512Lanes, kTileRows, kVectors>;
  return k;
}

}  // namespace

const GemmKernels kGemmAvx512 = kernels();

}  // namespace edgekit
