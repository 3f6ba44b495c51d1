// The caller's scratch memory of the products, divided, and the loops that all of them share.
#ifndef EDGEKIT_KERNELS_GEMM_WORKSPACE_H
#define EDGEKIT_KERNELS_GEMM_WORKSPACE_H

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kernels/gemm_kernels.h"
#include "kernels/matrix.h"
#include "thread_pool.h"

namespace edgekit {

// Rows of a table that table_mix takes at a time, and the distance of rows of their digits in bytes: an odd number
// of cache lines, so that equal columns of neighbouring rows do not compete for the same set of a cache.
constexpr std::int64_t kMixColumns = 1024;
constexpr std::int64_t kMixStride = kMixColumns + 64;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

// Integer or float sums [rows, 64] of up to kChunkRows rows.
struct Sums {
  union {
    alignas(64) std::int32_t integers[kChunkRows * kPanelRows];
    alignas(64) float floats[kChunkRows * kPanelRows];
  };
};

// What one thread needs.
struct Workspace {
  alignas(64) std::uint8_t block[kBlockBytes];
  alignas(64) float panel[kFloatBlockColumns * kPanelRows];
  Sums sums;
  Sums second_sums;
};

// What the threads share in table_mix: the digits of up to kChunkRows rows, high ones and low ones. Rows of zeros are left
// out, and then tokens that have a weight in no row.
struct MixDigits {
  alignas(64) std::int8_t high[kChunkRows * kMixStride];
  alignas(64) std::int8_t low[kChunkRows * kMixStride];
  float steps[kChunkRows];
  std::int32_t high_sums[kChunkRows];
  std::int32_t low_sums[kChunkRows];
  std::int32_t rows[kChunkRows];        // where those that are left were
  std::uint16_t tokens[kMixColumns];  // the same of tokens
  bool fine[kChunkRows];  // whether there are low digits; those of all such rows are moved together
};

// What a piece of a panel leaves for the one that ends last, see share_panels.
struct Piece {
  alignas(64) std::atomic<std::int64_t> undone;
  Sums sums;
  Sums second_sums;
};

// Scratch memory is a MixDigits or a Piece for each thread, and then a Workspace for each thread.
inline MixDigits &mix_digits(void *scratch) { return *static_cast<MixDigits *>(scratch); }
inline Piece &piece(void *scratch, std::int64_t index) { return static_cast<Piece *>(scratch)[index]; }
inline std::size_t shared_bytes(int threads) {
  return std::max(sizeof(MixDigits), static_cast<std::size_t>(threads) * sizeof(Piece));
}
inline Workspace &workspace(const ThreadPool &pool, void *scratch, int thread) {
  auto *first = reinterpret_cast<Workspace *>(static_cast<std::byte *>(scratch) + shared_bytes(pool.size()));
  return first[thread];
}
static_assert(sizeof(MixDigits) % 64 == 0 && sizeof(Piece) % 64 == 0 && sizeof(Workspace) % 64 == 0,
              "every part begins at a cache line");

// Calls body(first, count) for chunks of at most `most`.
template <typename Body>
void over_chunks(std::int64_t total, std::int64_t most, Body &&body) {
  for (std::int64_t first = 0; first < total; first += most) body(first, std::min(most, total - first));
}

// Calls body(first, count) for tiles of at most `most` rows and as equal as possible: 16 = 6 + 5 + 5.
template <typename Body>
void over_tiles(std::int64_t rows, std::int64_t most, Body &&body) {
  std::int64_t first = 0;
  for (std::int64_t left = ceil_div(rows, most); left > 0; --left) {
    const std::int64_t count = ceil_div(rows - first, left);
    body(first, count);
    first += count;
  }
}

// Calls body(first, count) for blocks of quads, as equal as multiples of 8 allow: the processor is asked for memory
// block by block.
template <typename Body>
void over_blocks(std::int64_t quads, Body &&body) {
  over_chunks(quads, round_up(ceil_div(quads, ceil_div(quads, kBlockQuads)), 8), body);
}

// Memory that will be needed soon.
struct Ahead {
  const std::uint8_t *from = nullptr;
  std::int64_t lines = 0;

  // The next `count` lines, null if there are not as many left.
  const std::uint8_t *take(std::int64_t count) {
    if (lines < count) return nullptr;
    const std::uint8_t *taken = from;
    from += count * 64;
    lines -= count;
    return taken;
  }
};

// sums [rows, 64] of activation codes with the quads first..end of one panel of weights. block(first_quad, quads) is
// the address of a block of weights in the form that tiles read; ahead(first_quad, quads) what to ask for meanwhile.
template <typename Block, typename AheadOf>
void sum_panel(const GemmKernels &kernels, const std::int8_t *x, std::int64_t stride, std::int64_t rows,
               std::int64_t first, std::int64_t end, std::int32_t *sums, Block &&block, AheadOf &&ahead) {
  over_blocks(end - first, [&](std::int64_t offset, std::int64_t count) {
    const std::int64_t quad = first + offset;
    const std::uint8_t *weights = block(quad, count);
    Ahead lines = ahead(quad, count);
    over_tiles(rows, kernels.tile_rows, [&](std::int64_t row, std::int64_t height) {
      kernels.tile(x + row * stride + quad * kQuad, stride, height, weights, count, sums + row * kPanelRows,
                   offset > 0, lines.take(count));
    });
  });
}

// The same in floats; panel(first, columns) is the address of weights [columns, 64].
template <typename Panel>
void sum_float_panel(const GemmKernels &kernels, const float *x, std::int64_t stride, std::int64_t rows,
                     std::int64_t columns, float *sums, Panel &&panel) {
  over_chunks(columns, kFloatBlockColumns, [&](std::int64_t first, std::int64_t depth) {
    const float *weights = panel(first, depth);
    over_tiles(rows, kernels.float_tile_rows, [&](std::int64_t row, std::int64_t height) {
      kernels.float_tile(x + row * stride + first, stride, height, weights, depth, sums + row * kPanelRows, first > 0);
    });
  });
}

}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_GEMM_WORKSPACE_H
