// Products of few rows with weights of 4 bits: the weights are unpacked in registers and never stored, because for
// so few rows storing and loading them again costs much beside multiplying. Each register of 64 weights costs three
// instructions, so this pays up to kPackedRows rows.
#include <cstdint>

#include "kernels/bits.h"
#include "kernels/gemm_kernels.h"
#include "kernels/gemm_registers.h"
#include "kernels/gemm_unpack_avx512.h"
#include "kernels/x86_intrinsics.h"

namespace edgekit {
namespace {

// `Vectors` registers of 16 outputs at a time; Rows * Vectors accumulators.
template <int Rows, int Vectors>
EK_VECTOR_INLINE void packed_rows(const std::int8_t *x, std::int64_t stride, const std::uint8_t *panel,
                                  const std::uint8_t *group_scales, std::int64_t first_quad, std::int64_t quads,
                                  std::int64_t group_quads, std::int32_t *sums, bool accumulate,
                                  const std::uint8_t *ahead) {
  const char *line = reinterpret_cast<const char *>(ahead ? ahead : panel);
  const std::int64_t step = ahead ? 64 : 0;
  const std::int64_t first_group = first_quad / group_quads;
  for (std::int64_t column = 0; column < kPanelRows; column += Vectors * 16) {
    Tile<IntVector, Rows, Vectors> tile;
    each_row(tile, [&](int r, auto &row) {
      each(row, [&](int i, __m512i &sum) {
        sum = accumulate ? _mm512_load_si512(sums + r * kPanelRows + column + i * 16) : _mm512_setzero_si512();
      });
    });
    const std::uint8_t *packed = panel + first_quad / 2 * (kPanelRows * kQuad) + column * kQuad;
    // Every third row; those between are reached by adding the stride once or twice within an address.
    const std::int8_t *p0 = x, *p3 = x + 3 * stride, *p6 = x + 6 * stride, *p9 = x + 9 * stride,
                      *p12 = x + 12 * stride, *p15 = x + 15 * stride;
    const auto activations = [&](int r, int offset) {
      const std::int8_t *third = r < 3 ? p0 : r < 6 ? p3 : r < 9 ? p6 : r < 12 ? p9 : r < 15 ? p12 : p15;
      return _mm512_set1_epi32(static_cast<int>(load_u32(third + r % 3 * stride + offset)));
    };
    const std::uint8_t *scales = group_scales + first_group * kPanelRows + column;
    std::int64_t group_end = (first_group + 1) * group_quads - first_quad;
    for (std::int64_t quad = 0; quad < quads; group_end += group_quads, scales += kPanelRows) {
      const std::int64_t end = group_end < quads ? group_end : quads;
      Registers<Unpacking, Vectors> how;
      each(how, [&](int i, Unpacking &u) { u = unpacking(scales + i * 16); });
      for (; quad < end; quad += 2) {
        Registers<IntVector, Vectors> pair, weights;
        each(pair, [&](int i, __m512i &p) {
          p = _mm512_loadu_si512(packed + i * 64);
          _mm_prefetch(line, _MM_HINT_T1);
          line += step;
        });
        each_three(weights, pair, how, [](__m512i &w, __m512i &p, Unpacking &u) { w = even_quad(p, u); });
        each_row(tile, [&](int r, auto &row) {
          const __m512i a = activations(r, 0);
          each_pair(row, weights, [&](int, __m512i &sum, __m512i &w) { sum = _mm512_dpbusd_epi32(sum, w, a); });
        });
        each_three(weights, pair, how, [](__m512i &w, __m512i &p, Unpacking &u) { w = odd_quad(p, u); });
        each_row(tile, [&](int r, auto &row) {
          const __m512i a = activations(r, kQuad);
          each_pair(row, weights, [&](int, __m512i &sum, __m512i &w) { sum = _mm512_dpbusd_epi32(sum, w, a); });
        });
        packed += kPanelRows * kQuad;
        p0 += 2 * kQuad, p3 += 2 * kQuad, p6 += 2 * kQuad;
        p9 += 2 * kQuad, p12 += 2 * kQuad, p15 += 2 * kQuad;
      }
    }
    each_row(tile, [&](int r, auto &row) {
      each(row, [&](int i, __m512i &sum) { _mm512_store_si512(sums + r * kPanelRows + column + i * 16, sum); });
    });
  }
}

template <int Rows>
struct PackedTile {
  // As many accumulators as hide the latency of the instruction, and registers left for the unpacking.
  static constexpr int kVectors = Rows <= 2 ? 4 : Rows <= 8 ? 2 : 1;

  static void run(const std::int8_t *x, std::int64_t stride, const std::uint8_t *panel,
                  const std::uint8_t *group_scales, std::int64_t first_quad, std::int64_t quads,
                  std::int64_t group_quads, std::int32_t *sums, bool accumulate, const std::uint8_t *ahead) {
    packed_rows<Rows, kVectors>(x, stride, panel, group_scales, first_quad, quads, group_quads, sums, accumulate,
                                ahead);
  }
};

}  // namespace

void packed_tile_avx512(const std::int8_t *x, std::int64_t stride, std::int64_t rows, const std::uint8_t *panel,
                        const std::uint8_t *group_scales, std::int64_t first_quad, std::int64_t quads,
                        std::int64_t group_quads, std::int32_t *sums, bool accumulate, const std::uint8_t *ahead) {
  with_rows<PackedTile, kPackedRows>(rows, x, stride, panel, group_scales, first_quad, quads, group_quads, sums,
                                     accumulate, ahead);
}

}  // namespace edgekit
