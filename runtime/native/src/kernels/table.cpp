// Products with the rows of a vocabulary table, which are stored row by row because single rows are read too:
// panels are put together while a product runs.
#include <algorithm>
#include <cstring>

#include "error.h"
#include "kernels/gemm.h"
#include "kernels/gemm_kernels.h"
#include "kernels/gemm_workspace.h"

namespace edgekit {
namespace {

const std::uint16_t *bfloat16(const Table &table) { return reinterpret_cast<const std::uint16_t *>(table.codes); }

PanelOutput panel_output(std::int64_t panel, std::int64_t outputs, float *y, std::int64_t y_stride) {
  PanelOutput out;
  out.y = y + panel * kPanelRows;
  out.y_stride = y_stride;
  out.columns = static_cast<int>(std::min(kPanelRows, outputs - panel * kPanelRows));
  return out;
}

// Moves sums [count, 64] to the rows that are fine, as many, and makes those of the others zero.
void spread_rows(const bool *fine, std::int64_t rows, std::int64_t count, Sums &sums) {
  constexpr std::size_t kBytes = kPanelRows * sizeof(std::int32_t);
  for (std::int64_t row = rows - 1; row >= 0; --row) {
    std::int32_t *to = sums.integers + row * kPanelRows;
    if (!fine[row]) {
      std::memset(to, 0, kBytes);
    } else if (--count < row) {
      std::memcpy(to, sums.integers + count * kPanelRows, kBytes);
    }
  }
}

// What is left when rows of zeros are gone, and tokens that no row weighs.
struct MixSize {
  std::int64_t rows = 0, fine_rows = 0, tokens = 0;
  bool all_tokens = false;  // nothing was moved
};

// Moves the digits of rows with a weight together.
MixSize leave_out_rows(MixDigits &digits, std::int64_t rows, std::int64_t filled) {
  const std::size_t bytes = static_cast<std::size_t>(filled);
  MixSize out;
  for (std::int64_t row = 0; row < rows; ++row) {
    if (digits.steps[row] == 0.0f) continue;  // a NaN is none
    if (digits.fine[row]) {
      std::int8_t *low = digits.low + out.fine_rows++ * kMixStride;
      if (low != digits.low + row * kMixStride) std::memcpy(low, digits.low + row * kMixStride, bytes);
    }
    const std::int64_t to = out.rows++;
    digits.rows[to] = static_cast<std::int32_t>(row);
    if (to == row) continue;
    std::memcpy(digits.high + to * kMixStride, digits.high + row * kMixStride, bytes);
    digits.steps[to] = digits.steps[row];
    digits.high_sums[to] = digits.high_sums[row];
    digits.low_sums[to] = digits.low_sums[row];
    digits.fine[to] = digits.fine[row];
  }
  return out;
}

// The same for tokens, where that saves an eighth of the product.
void leave_out_tokens(ThreadPool &pool, MixDigits &digits, std::int64_t tokens, MixSize &left) {
  constexpr std::int64_t kRowsAtOnce = 16;  // between two looks at how many there are
  std::uint8_t used[kMixColumns] = {};
  const auto join = [&](const std::int8_t *codes) {
    for (std::int64_t i = 0; i < tokens; ++i) used[i] |= static_cast<std::uint8_t>(codes[i]);
  };
  left.tokens = 0;
  for (std::int64_t row = 0, fine = 0; row < left.rows;) {
    for (const std::int64_t end = std::min(left.rows, row + kRowsAtOnce); row < end; ++row) {
      join(digits.high + row * kMixStride);
      if (digits.fine[row]) join(digits.low + fine++ * kMixStride);
    }
    left.tokens = tokens - std::count(used, used + tokens, std::uint8_t{0});
    left.all_tokens = left.tokens > tokens - tokens / 8;
    if (left.all_tokens) break;
  }
  if (left.all_tokens) {
    left.tokens = tokens;
    return;
  }
  left.tokens = 0;
  for (std::int64_t i = 0; i < tokens; ++i) {
    if (used[i] != 0) digits.tokens[left.tokens++] = static_cast<std::uint16_t>(i);
  }
  if (left.tokens == 0) digits.tokens[left.tokens++] = 0;  // of rows that are not finite only the step says so
  const std::int64_t filled = round_up(left.tokens, 64);
  pool.run(left.rows + left.fine_rows, [&](std::int64_t task, int) {
    std::int8_t *row = task < left.rows ? digits.high + task * kMixStride : digits.low + (task - left.rows) * kMixStride;
    for (std::int64_t i = 0; i < left.tokens; ++i) row[i] = row[digits.tokens[i]];
    std::memset(row + left.tokens, 0, static_cast<std::size_t>(filled - left.tokens));
  });
}

// y += p @ table for a chunk of rows and kMixColumns rows of an 8-bit table. Digits of 0 add nothing to sums of integers,
// so that what is left out changes no bit.
void mix_codes(ThreadPool &pool, const Table &table, const float *p, std::int64_t p_stride, std::int64_t rows,
               const float *fine_above, float *y, std::int64_t y_stride, void *scratch) {
  const GemmKernels &kernels = gemm_kernels();
  MixDigits &digits = mix_digits(scratch);
  const std::int64_t filled = round_up(table.rows, 64);
  pool.run(rows, [&](std::int64_t row, int) {
    // Nothing is at most -1.
    digits.fine[row] =
        kernels.split_row(p + row * p_stride, table.scales, table.rows, filled, fine_above ? fine_above[row] : -1.0f,
                          digits.high + row * kMixStride, digits.low + row * kMixStride, digits.steps + row,
                          digits.high_sums + row, digits.low_sums + row);
  });
  MixSize left = leave_out_rows(digits, rows, filled);
  if (left.rows == 0) return;
  leave_out_tokens(pool, digits, table.rows, left);
  pool.run(ceil_div(table.columns, kPanelRows), [&](std::int64_t task, int thread) {
    Workspace &work = workspace(pool, scratch, thread);
    const PanelOutput out = panel_output(task, table.columns, y, y_stride);
    const std::uint8_t *codes = table.codes + task * kPanelRows;
    auto *picked = reinterpret_cast<std::uint8_t *>(work.panel);  // [kBlockColumns, 64]
    static_assert(sizeof work.panel >= kBlockBytes, "the bytes of a block");
    over_chunks(left.tokens, kBlockColumns, [&](std::int64_t first, std::int64_t depth) {
      for (std::int64_t i = 0; !left.all_tokens && i < depth; ++i) {
        std::memcpy(picked + i * kPanelRows, codes + digits.tokens[first + i] * table.columns,
                    static_cast<std::size_t>(out.columns));
      }
      const std::uint8_t *from = left.all_tokens ? codes + first * table.columns : picked;
      kernels.pack_columns(from, left.all_tokens ? table.columns : kPanelRows, depth, out.columns, work.block);
      const auto multiply = [&](const std::int8_t *x, std::int64_t count, Sums &sums) {
        over_tiles(count, kernels.tile_rows, [&](std::int64_t row, std::int64_t height) {
          kernels.tile(x + row * kMixStride + first, kMixStride, height, work.block, ceil_div(depth, kQuad),
                       sums.integers + row * kPanelRows, first > 0, nullptr);
        });
      };
      multiply(digits.high, left.rows, work.sums);
      multiply(digits.low, left.fine_rows, work.second_sums);
    });
    spread_rows(digits.fine, left.rows, left.fine_rows, work.second_sums);
    for (std::int64_t first = 0, end; first < left.rows; first = end) {
      for (end = first + 1; end < left.rows && digits.rows[end] == digits.rows[end - 1] + 1;) ++end;
      PanelOutput part = out;
      part.y += digits.rows[first] * y_stride;
      part.x_scales = digits.steps + first;
      part.x_sums = digits.high_sums + first;
      kernels.finish_mix(work.sums.integers + first * kPanelRows, work.second_sums.integers + first * kPanelRows,
                         end - first, digits.low_sums + first, part);
    }
  });
}

// The columns of p [rows, columns] that hold more than zeros; returns how many.
std::int64_t weighed(const float *p, std::int64_t stride, std::int64_t rows, std::int64_t columns, std::uint16_t *out) {
  bool used[kFloatBlockColumns] = {};
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < columns; ++i) used[i] |= p[row * stride + i] != 0.0f;
  }
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < columns; ++i) {
    if (used[i]) out[count++] = static_cast<std::uint16_t>(i);
  }
  return count;
}

// Blocks are cut as if no token were left out: in each a sum goes on as before a product with 0, which would not change it.
void mix_floats(ThreadPool &pool, const Table &table, const float *p, std::int64_t p_stride, std::int64_t rows,
                float *y, std::int64_t y_stride, void *scratch) {
  const GemmKernels &kernels = gemm_kernels();
  pool.run(ceil_div(table.columns, kPanelRows), [&](std::int64_t task, int thread) {
    Workspace &work = workspace(pool, scratch, thread);
    float *picked = work.second_sums.floats;  // [rows of a tile, kFloatBlockColumns]
    PanelOutput out = panel_output(task, table.columns, y, y_stride);
    bool begun = false;
    over_chunks(table.rows, kFloatBlockColumns, [&](std::int64_t first, std::int64_t depth) {
      const float *weights = p + first;
      std::uint16_t tokens[kFloatBlockColumns];
      const std::int64_t count = weighed(weights, p_stride, rows, depth, tokens);
      if (count == 0) return;
      const std::uint16_t *codes = bfloat16(table) + first * table.columns + task * kPanelRows;
      for (std::int64_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && tokens[end] == tokens[end - 1] + 1;) ++end;
        kernels.widen_columns(codes + tokens[i] * table.columns, table.columns, end - i, out.columns,
                              work.panel + i * kPanelRows);
      }
      over_tiles(rows, kernels.float_tile_rows, [&](std::int64_t row, std::int64_t height) {
        const float *x = weights + row * p_stride;
        std::int64_t stride = p_stride;
        if (count < depth) {
          for (std::int64_t r = 0; r < height; ++r) {
            for (std::int64_t i = 0; i < count; ++i) picked[r * kFloatBlockColumns + i] = x[r * p_stride + tokens[i]];
          }
          x = picked;
          stride = kFloatBlockColumns;
        }
        kernels.float_tile(x, stride, height, work.panel, count, work.sums.floats + row * kPanelRows, begun);
      });
      begun = true;
    });
    if (!begun) return;
    out.residual = out.y;
    out.residual_stride = y_stride;
    kernels.finish_float(work.sums.floats, rows, out);
  });
}

// Rows first..first+count; the layout has no padding.
Table table_rows(const Table &table, std::int64_t first, std::int64_t count) {
  Table part = table;
  part.rows = count;
  part.codes += first * table.columns * (table.bits / 8);
  if (table.scales) part.scales += first;
  return part;
}

}  // namespace

void table_scores(ThreadPool &pool, const Table &table, const QuantizedRows &x, float *z, std::int64_t z_stride,
                  void *scratch) {
  if (table.bits != 8 || table.columns != x.columns) {
    fail(EK_INVALID_ARGUMENT, "activations of ", x.columns, " columns, rounded to 8 bits, for a table of ",
         table.columns, " columns and ", table.bits, " bits");
  }
  const GemmKernels &kernels = gemm_kernels();
  pool.run(ceil_div(table.rows, kPanelRows), [&](std::int64_t task, int thread) {
    Workspace &work = workspace(pool, scratch, thread);
    PanelOutput out = panel_output(task, table.rows, z, z_stride);
    out.scales = table.scales + task * kPanelRows;
    const std::uint8_t *codes = table.codes + task * kPanelRows * table.columns;
    over_chunks(x.rows, kChunkRows, [&](std::int64_t first, std::int64_t rows) {
      sum_panel(
          kernels, x.codes + first * x.stride, x.stride, rows, 0, ceil_div(table.columns, kQuad),
          work.sums.integers,
          [&](std::int64_t quad, std::int64_t quads) {
            const std::int64_t column = quad * kQuad;
            kernels.pack_rows(codes + column, table.columns, out.columns,
                              std::min(quads * kQuad, table.columns - column), work.block);
            return static_cast<const std::uint8_t *>(work.block);
          },
          [](std::int64_t, std::int64_t) { return Ahead{}; });
      PanelOutput part = out;
      part.y += first * z_stride;
      part.x_scales = x.scales + first;
      part.x_sums = x.sums + first;
      kernels.finish(work.sums.integers, rows, part);
    });
  });
}

void table_scores_float(ThreadPool &pool, const Table &table, const float *x, std::int64_t x_stride,
                        std::int64_t rows, float *z, std::int64_t z_stride, void *scratch) {
  const GemmKernels &kernels = gemm_kernels();
  pool.run(ceil_div(table.rows, kPanelRows), [&](std::int64_t task, int thread) {
    Workspace &work = workspace(pool, scratch, thread);
    PanelOutput out = panel_output(task, table.rows, z, z_stride);
    if (table.bits == 8) out.scales = table.scales + task * kPanelRows;
    const std::int64_t from = task * kPanelRows * table.columns;
    const auto weights = [&](std::int64_t first, std::int64_t depth) -> const float * {
      if (table.bits == 16) {
        kernels.widen_rows(bfloat16(table) + from + first, table.columns, out.columns, depth, work.panel);
      } else {
        kGemmScalar.pack_rows(table.codes + from + first, table.columns, out.columns, depth, work.block);
        kernels.widen_codes(work.block, ceil_div(depth, kQuad), work.panel);
      }
      return work.panel;
    };
    over_chunks(rows, kChunkRows, [&](std::int64_t first, std::int64_t count) {
      sum_float_panel(kernels, x + first * x_stride, x_stride, count, table.columns, work.sums.floats, weights);
      PanelOutput part = out;
      part.y += first * z_stride;
      kernels.finish_float(work.sums.floats, count, part);
    });
  });
}

void table_mix(ThreadPool &pool, const Table &table, const float *p, std::int64_t p_stride, std::int64_t rows,
               const float *fine_above, float *y, std::int64_t y_stride, void *scratch) {
  over_chunks(rows, kChunkRows, [&](std::int64_t first_row, std::int64_t count) {
    const float *some_p = p + first_row * p_stride;
    float *some_y = y + first_row * y_stride;
    if (table.bits == 16) {
      mix_floats(pool, table, some_p, p_stride, count, some_y, y_stride, scratch);
      return;
    }
    over_chunks(table.rows, kMixColumns, [&](std::int64_t first, std::int64_t depth) {
      mix_codes(pool, table_rows(table, first, depth), some_p + first, p_stride, count,
                fine_above ? fine_above + first_row : nullptr, some_y, y_stride, scratch);
    });
  });
}

}  // namespace edgekit
