// What an instruction set must offer for the products of gemm.h: one table of functions for each.
//
// A product is computed panel by panel (64 outputs), a panel in blocks of at most kBlockQuads * 4 columns: a block
// of weights is brought into the form that `tile` reads, once, and multiplied with all rows of the activations;
// the sums of the blocks before are kept in memory, [rows, 64].
#ifndef EDGEKIT_KERNELS_GEMM_KERNELS_H
#define EDGEKIT_KERNELS_GEMM_KERNELS_H

#include <cstdint>

#include "kernels/matrix.h"

namespace edgekit {

constexpr std::int64_t kBlockQuads = 128;
constexpr std::int64_t kBlockColumns = kBlockQuads * kQuad;
// A block of weights in bytes, and of weights widened to floats in columns. The latter is part of the definition of
// a float product: each block is summed from zero and added to the sum of the blocks before.
constexpr std::int64_t kBlockBytes = kBlockColumns * kPanelRows;
constexpr std::int64_t kFloatBlockColumns = 256;
// Rows whose sums are kept at a time.
constexpr std::int64_t kChunkRows = 256;

// Where the sums of a panel go.
struct PanelOutput {
  const float *x_scales = nullptr;       // [rows]
  const std::int32_t *x_sums = nullptr;  // [rows]
  const float *scales = nullptr;         // [columns] of the panel
  const float *bias = nullptr;           // [columns] or null
  const float *residual = nullptr;       // [rows, columns] or null
  std::int64_t residual_stride = 0;
  float *y = nullptr;
  std::int64_t y_stride = 0;
  int columns = 0;  // that exist, 1..64
};

struct GemmKernels {
  const char *name;
  // `tile` multiplies with W + offset.
  std::int32_t offset;
  std::int64_t tile_rows;

  // Blocks of weights from what is stored. `prepare` is null if `tile` reads codes of 8 bits as they are.
  void (*prepare)(const std::uint8_t *codes, std::int64_t quads, std::uint8_t *block);
  // `quads` quads from `first_quad` (even) on of a panel of 4 bits with `group_quads` quads in a group.
  void (*unpack)(const std::uint8_t *panel, const std::uint8_t *group_scales, std::int64_t first_quad,
                 std::int64_t quads, std::int64_t group_quads, std::uint8_t *block);
  // The panel whose outputs are `count` (at most 64) rows of bytes.
  void (*pack_rows)(const std::uint8_t *rows, std::int64_t stride, std::int64_t count, std::int64_t columns,
                    std::uint8_t *block);
  // The panel whose outputs are `count` (at most 64) columns of `depth` rows of bytes.
  void (*pack_columns)(const std::uint8_t *rows, std::int64_t stride, std::int64_t depth, std::int64_t count,
                       std::uint8_t *block);

  // sums [rows, 64] (+)= x [rows, 4 * quads] @ block, 1 <= rows <= tile_rows. Reads x up to the next multiple of 64.
  // `ahead` is memory that will be needed soon: a kernel may ask the processor for `quads` lines of 64 bytes from
  // there on while it computes; null for none.
  void (*tile)(const std::int8_t *x, std::int64_t stride, std::int64_t rows, const std::uint8_t *block,
               std::int64_t quads, std::int32_t *sums, bool accumulate, const std::uint8_t *ahead);

  // `unpack` and `tile` in one for up to `packed_tile_rows` rows; null if there is none. As many bytes as it reads
  // will be needed soon at `ahead`.
  std::int64_t packed_tile_rows;
  void (*packed_tile)(const std::int8_t *x, std::int64_t stride, std::int64_t rows, const std::uint8_t *panel,
                      const std::uint8_t *group_scales, std::int64_t first_quad, std::int64_t quads,
                      std::int64_t group_quads, std::int32_t *sums, bool accumulate, const std::uint8_t *ahead);

  // y = float(sums - offset * x_sums) * (x_scales * scales) + bias + residual.
  void (*finish)(const std::int32_t *sums, std::int64_t rows, const PanelOutput &out);
  // y = activation(gate) * up, both scaled as above; gate's y, bias and residual are not used.
  void (*finish_gated)(const std::int32_t *gate_sums, const std::int32_t *up_sums, std::int64_t rows,
                       const float *gate_scales, Activation kind, const PanelOutput &up);
  // y += (256 * high + low) * x_scales; x_sums are those of all rows of the high digits, then of the low ones.
  void (*finish_mix)(const std::int32_t *high, const std::int32_t *low, std::int64_t rows,
                     const std::int32_t *low_x_sums, const PanelOutput &out);

  // gemm.h: quantize_rows for one row; bytes from `columns` to `stride` become zero.
  void (*quantize_row)(const float *x, std::int64_t columns, std::int64_t stride, std::int8_t *codes, float *scale,
                       std::int32_t *sum);
  // p * scales = step * (256 * high + low), digits in -128..127; bytes from `columns` to `stride` become zero.
  // Returns whether a p exceeds `fine_above`; if none does, there is no low digit, and its array is left alone.
  bool (*split_row)(const float *p, const float *scales, std::int64_t columns, std::int64_t stride, float fine_above,
                    std::int8_t *high, std::int8_t *low, float *step, std::int32_t *high_sum,
                    std::int32_t *low_sum);

  // Products in floats: the panel is [depth, 64].
  std::int64_t float_tile_rows;
  void (*widen_codes)(const std::uint8_t *codes, std::int64_t quads, float *panel);
  void (*widen_rows)(const std::uint16_t *rows, std::int64_t stride, std::int64_t count, std::int64_t columns,
                     float *panel);
  void (*widen_columns)(const std::uint16_t *rows, std::int64_t stride, std::int64_t depth, std::int64_t count,
                        float *panel);
  // sums [rows, 64] (+)= x [rows, depth] @ panel; within the call summed from zero in ascending order.
  void (*float_tile)(const float *x, std::int64_t stride, std::int64_t rows, const float *panel, std::int64_t depth,
                     float *sums, bool accumulate);
  // y = sums * scales + bias + residual; scales may be null.
  void (*finish_float)(const float *sums, std::int64_t rows, const PanelOutput &out);
};

extern const GemmKernels kGemmScalar;
#if defined(__x86_64__) || defined(_M_X64)
extern const GemmKernels kGemmAvx512;
extern const GemmKernels kGemmAvxVnni;
extern const GemmKernels kGemmAvx2;
#elif defined(__aarch64__) || defined(_M_ARM64)
extern const GemmKernels kGemmI8mm;
extern const GemmKernels kGemmDotprod;
#endif

#if defined(__x86_64__) || defined(_M_X64)
constexpr std::int64_t kPackedRows = 16;
void packed_tile_avx512(const std::int8_t *x, std::int64_t stride, std::int64_t rows, const std::uint8_t *panel,
                        const std::uint8_t *group_scales, std::int64_t first_quad, std::int64_t quads,
                        std::int64_t group_quads, std::int32_t *sums, bool accumulate, const std::uint8_t *ahead);
#endif

// The one in use.
const GemmKernels &gemm_kernels();

}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_GEMM_KERNELS_H
