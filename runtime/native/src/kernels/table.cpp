// Products with the rows of a vocabulary table, which are stored row by row because single rows are read too:
// panels are put together while a product runs.
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

// y += p @ table for a chunk of rows and kMixColumns rows of an 8-bit table.
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
  std::int64_t fine_rows = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    if (!digits.fine[row]) continue;
    if (fine_rows < row) {
      std::memcpy(digits.low + fine_rows * kMixStride, digits.low + row * kMixStride,
                  static_cast<std::size_t>(filled));
    }
    ++fine_rows;
  }
  pool.run(ceil_div(table.columns, kPanelRows), [&](std::int64_t task, int thread) {
    Workspace &work = workspace(pool, scratch, thread);
    PanelOutput out = panel_output(task, table.columns, y, y_stride);
    over_chunks(table.rows, kBlockColumns, [&](std::int64_t first, std::int64_t depth) {
      kernels.pack_columns(table.codes + first * table.columns + task * kPanelRows, table.columns, depth, out.columns,
                           work.block);
      const auto multiply = [&](const std::int8_t *codes, std::int64_t count, Sums &sums) {
        over_tiles(count, kernels.tile_rows, [&](std::int64_t row, std::int64_t height) {
          kernels.tile(codes + row * kMixStride + first, kMixStride, height, work.block, ceil_div(depth, kQuad),
                       sums.integers + row * kPanelRows, first > 0, nullptr);
        });
      };
      multiply(digits.high, rows, work.sums);
      multiply(digits.low, fine_rows, work.second_sums);
    });
    spread_rows(digits.fine, rows, fine_rows, work.second_sums);
    out.x_scales = digits.steps;
    out.x_sums = digits.high_sums;
    kernels.finish_mix(work.sums.integers, work.second_sums.integers, rows, digits.low_sums, out);
  });
}

void mix_floats(ThreadPool &pool, const Table &table, const float *p, std::int64_t p_stride, std::int64_t rows,
                float *y, std::int64_t y_stride, void *scratch) {
  const GemmKernels &kernels = gemm_kernels();
  pool.run(ceil_div(table.columns, kPanelRows), [&](std::int64_t task, int thread) {
    Workspace &work = workspace(pool, scratch, thread);
    PanelOutput out = panel_output(task, table.columns, y, y_stride);
    sum_float_panel(kernels, p, p_stride, rows, table.rows, work.sums.floats,
                    [&](std::int64_t first, std::int64_t depth) {
                      kernels.widen_columns(bfloat16(table) + first * table.columns + task * kPanelRows,
                                            table.columns, depth, out.columns, work.panel);
                      return static_cast<const float *>(work.panel);
                    });
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
