// Bringing weights into the form that tiles read: plain loops which the compiler vectorises for the instruction set
// of the file that includes this. Everything is local to that file.
//
// The element of row r (an output) and column k is at [k / Unit][r][k % Unit] of a block: Unit is 4 (the stored
// form) or 8. Flip is 0 for unsigned codes W + 128 and 0x80 for signed ones.
#ifndef EDGEKIT_KERNELS_GEMM_BLOCKS_H
#define EDGEKIT_KERNELS_GEMM_BLOCKS_H

#include <cstdint>
#include <cstring>

#include "kernels/bits.h"
#include "kernels/matrix.h"
#include "kernels/vector_math.h"

namespace edgekit {
namespace {

// Where the four bytes of (quad, row) are.
template <int Unit>
EK_VECTOR_INLINE std::int64_t place(std::int64_t quad, std::int64_t row) {
  return Unit == 4 ? (quad * kPanelRows + row) * 4 : ((quad >> 1) * kPanelRows + row) * 8 + (quad & 1) * 4;
}

// Weights of 0 for the second half of the last unit of an odd number of quads.
template <int Unit, std::uint8_t Flip>
EK_VECTOR_INLINE void close_block(std::int64_t quads, std::uint8_t *block) {
  if (Unit == 4 || quads % 2 == 0) return;
  for (std::int64_t row = 0; row < kPanelRows; ++row) {
    store_u32(block + place<Unit>(quads, row), 0x80808080u ^ (Flip * 0x01010101u));
  }
}

template <int Unit, std::uint8_t Flip>
void prepare_block(const std::uint8_t *codes, std::int64_t quads, std::uint8_t *block) {
  const std::uint32_t flip = Flip * 0x01010101u;
  for (std::int64_t quad = 0; quad < quads; ++quad) {
    for (std::int64_t row = 0; row < kPanelRows; ++row) {
      store_u32(block + place<Unit>(quad, row), load_u32(codes + place<4>(quad, row)) ^ flip);
    }
  }
  close_block<Unit, Flip>(quads, block);
}

// Four codes at a time as bytes of one word: code * scale + 128 - 8 * scale stays below 256, so nothing carries.
template <int Unit, std::uint8_t Flip>
void unpack_block(const std::uint8_t *panel, const std::uint8_t *group_scales, std::int64_t first_quad,
                  std::int64_t quads, std::int64_t group_quads, std::uint8_t *block) {
  constexpr std::uint32_t kNibbles = 0x0f0f0f0fu;
  std::uint32_t factor[kPanelRows];
  std::uint32_t offset[kPanelRows];
  const std::uint8_t *scales = group_scales + first_quad / group_quads * kPanelRows;
  std::int64_t group_end = (first_quad / group_quads + 1) * group_quads - first_quad;
  for (std::int64_t quad = 0; quad < quads; group_end += group_quads, scales += kPanelRows) {
    const std::int64_t end = group_end < quads ? group_end : quads;
    for (std::int64_t row = 0; row < kPanelRows; ++row) {
      factor[row] = scales[row];
      offset[row] = (128u - 8u * factor[row]) * 0x01010101u;
    }
    for (; quad < end; quad += 2) {
      const std::uint8_t *packed = panel + (first_quad + quad) / 2 * (kPanelRows * 4);
      for (std::int64_t row = 0; row < kPanelRows; ++row) {
        const std::uint32_t pair = load_u32(packed + row * 4);
        const std::uint32_t even = (pair & kNibbles) * factor[row] + offset[row];
        const std::uint32_t odd = ((pair >> 4) & kNibbles) * factor[row] + offset[row];
        store_u32(block + place<Unit>(quad, row), even ^ (Flip * 0x01010101u));
        store_u32(block + place<Unit>(quad + 1, row), odd ^ (Flip * 0x01010101u));
      }
    }
  }
}

template <int Unit, std::uint8_t Flip>
void pack_rows_block(const std::uint8_t *rows, std::int64_t stride, std::int64_t count, std::int64_t columns,
                     std::uint8_t *block) {
  const std::uint32_t flip = Flip * 0x01010101u;
  const std::int64_t quads = (columns + kQuad - 1) / kQuad;
  const std::int64_t whole = columns / kQuad;
  for (std::int64_t row = 0; row < kPanelRows; ++row) {
    const std::uint8_t *from = rows + row * stride;
    const std::int64_t present = row < count ? whole : 0;
    for (std::int64_t quad = 0; quad < present; ++quad) {
      store_u32(block + place<Unit>(quad, row), load_u32(from + quad * kQuad) ^ flip);
    }
    for (std::int64_t quad = present; quad < quads; ++quad) {
      std::uint8_t last[kQuad] = {128, 128, 128, 128};
      for (std::int64_t k = quad * kQuad; row < count && k < columns; ++k) last[k - quad * kQuad] = from[k];
      store_u32(block + place<Unit>(quad, row), load_u32(last) ^ flip);
    }
  }
  close_block<Unit, Flip>(quads, block);
}

template <int Unit, std::uint8_t Flip>
void pack_columns_block(const std::uint8_t *rows, std::int64_t stride, std::int64_t depth, std::int64_t count,
                        std::uint8_t *block) {
  const std::int64_t quads = (depth + kQuad - 1) / kQuad;
  for (std::int64_t quad = 0; quad < quads; ++quad) {
    std::uint8_t lines[kQuad][kPanelRows];
    for (std::int64_t i = 0; i < kQuad; ++i) {
      std::memset(lines[i], 128, sizeof lines[i]);
      if (quad * kQuad + i < depth) {
        std::memcpy(lines[i], rows + (quad * kQuad + i) * stride, static_cast<std::size_t>(count));
      }
    }
    for (std::int64_t row = 0; row < kPanelRows; ++row) {
      for (std::int64_t i = 0; i < kQuad; ++i) block[place<Unit>(quad, row) + i] = lines[i][row] ^ Flip;
    }
  }
  close_block<Unit, Flip>(quads, block);
}

// Codes [quads, 64, 4] to W [4 * quads, 64] in floats.
inline void widen_codes_block(const std::uint8_t *codes, std::int64_t quads, float *panel) {
  for (std::int64_t quad = 0; quad < quads; ++quad) {
    float *to = panel + quad * kQuad * kPanelRows;
    for (std::int64_t row = 0; row < kPanelRows; ++row) {
      const std::uint32_t four = load_u32(codes + place<4>(quad, row));
      for (int i = 0; i < 4; ++i) {
        to[i * kPanelRows + row] = static_cast<float>(static_cast<std::int32_t>((four >> (8 * i)) & 0xff) - 128);
      }
    }
  }
}

EK_VECTOR_INLINE float widen_bfloat16(std::uint16_t x) { return float_of_bits(static_cast<std::uint32_t>(x) << 16); }

// The panel whose outputs are `count` rows of bfloat16.
inline void widen_rows_block(const std::uint16_t *rows, std::int64_t stride, std::int64_t count, std::int64_t columns,
                      float *panel) {
  // Sixteen columns at a time, so that the cache lines written stay in the first level.
  for (std::int64_t begin = 0; begin < columns; begin += 16) {
    const std::int64_t end = begin + 16 < columns ? begin + 16 : columns;
    for (std::int64_t row = 0; row < kPanelRows; ++row) {
      for (std::int64_t k = begin; k < end; ++k) {
        panel[k * kPanelRows + row] = row < count ? widen_bfloat16(rows[row * stride + k]) : 0.0f;
      }
    }
  }
}

// The panel whose outputs are `count` columns of `depth` rows of bfloat16.
inline void widen_columns_block(const std::uint16_t *rows, std::int64_t stride, std::int64_t depth, std::int64_t count,
                         float *panel) {
  for (std::int64_t k = 0; k < depth; ++k) {
    for (std::int64_t row = 0; row < count; ++row) panel[k * kPanelRows + row] = widen_bfloat16(rows[k * stride + row]);
    for (std::int64_t row = count; row < kPanelRows; ++row) panel[k * kPanelRows + row] = 0.0f;
  }
}

}  // namespace
}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_GEMM_BLOCKS_H
