#include "kernels/gemm.h"

#include "error.h"
#include "kernels/gemm_kernels.h"
#include "kernels/gemm_share.h"
#include "kernels/gemm_workspace.h"

namespace edgekit {
namespace {

// Beyond this the sum of a row could leave 32 bits: 255 * 127 * columns < 2^31.
constexpr std::int64_t kMostColumns = 60000;

// How far ahead of its use memory is asked for: some microseconds, and no more than a part of a second-level cache.
constexpr std::int64_t kAheadBytes = 16384;

// Rows of x for which it is worth while to widen a panel.
constexpr std::int64_t kLeastRows = 16;

void check(const Matrix &matrix, std::int64_t columns) {
  if (matrix.columns != columns) {
    fail(EK_INVALID_ARGUMENT, "activations of ", columns, " columns for a matrix of ", matrix.columns);
  }
  if (columns > kMostColumns) {
    fail(EK_INVALID_ARGUMENT, "a matrix of ", columns, " columns; products of rounded activations take at most ",
         kMostColumns);
  }
}

// Stored codes of one panel of 4 or 8 bits.
class Panel {
 public:
  Panel(const Matrix &matrix, std::int64_t index) : bits_(matrix.bits) {
    const std::int64_t quads = ceil_div(matrix.columns, kQuad);
    quad_bytes_ = kPanelRows * kQuad * bits_ / 8;
    codes_ = matrix.codes + index * quads * quad_bytes_;
    end_ = matrix.codes + ceil_div(matrix.rows, kPanelRows) * quads * quad_bytes_;
    if (bits_ == 4) {
      group_scales_ = matrix.group_scales + index * (matrix.columns / matrix.group) * kPanelRows;
      group_quads_ = matrix.group / kQuad;
    }
  }

  const std::uint8_t *block(const GemmKernels &kernels, std::int64_t first_quad, std::int64_t quads,
                            std::uint8_t *memory) const {
    if (bits_ == 4) {
      kernels.unpack(codes_, group_scales_, first_quad, quads, group_quads_, memory);
      return memory;
    }
    const std::uint8_t *codes = codes_ + first_quad * quad_bytes_;
    if (!kernels.prepare) return codes;
    kernels.prepare(codes, quads, memory);
    return memory;
  }

  // Whether `rows` are so few that weights are not worth unpacking into memory.
  bool packed_fits(const GemmKernels &kernels, std::int64_t rows) const {
    return bits_ == 4 && rows <= kernels.packed_tile_rows;
  }

  void packed_tile(const GemmKernels &kernels, const std::int8_t *x, std::int64_t stride, std::int64_t rows,
                   std::int64_t quad, std::int64_t quads, std::int32_t *sums, bool accumulate) const {
    kernels.packed_tile(x + quad * kQuad, stride, rows, codes_, group_scales_, quad, quads, group_quads_, sums,
                        accumulate, ahead(quad, quads).from);
  }

  // Codes [quads, 64, 4] of W + 128 whatever the instruction set.
  const std::uint8_t *plain_block(std::int64_t first_quad, std::int64_t quads, std::uint8_t *memory) const {
    return block(kGemmScalar, first_quad, quads, memory);
  }

  // What follows the codes of a block kAheadBytes later, in the same panel or the next; empty at the matrix's end.
  Ahead ahead(std::int64_t first_quad, std::int64_t quads) const {
    const std::uint8_t *from = codes_ + first_quad * quad_bytes_;
    const std::int64_t bytes = quads * quad_bytes_;
    if (end_ - from < kAheadBytes + bytes) return {};
    return {from + kAheadBytes, bytes / 64};
  }

 private:
  int bits_;
  std::int64_t quad_bytes_ = 0;
  const std::uint8_t *codes_ = nullptr;
  const std::uint8_t *end_ = nullptr;
  const std::uint8_t *group_scales_ = nullptr;
  std::int64_t group_quads_ = 0;
};

// Rows of activations first..first+count, at most kChunkRows.
struct Chunk {
  std::int64_t first, count;

  Chunk(std::int64_t index, std::int64_t rows)
      : first(index * kChunkRows), count(std::min(kChunkRows, rows - first)) {}
};

// Sums of a chunk over the quads first..end.
void sum_matrix_panel(const GemmKernels &kernels, const Panel &panel, const QuantizedRows &x, const Chunk &chunk,
                      std::int64_t first, std::int64_t end, Sums &sums, Workspace &work) {
  const std::int8_t *codes = x.codes + chunk.first * x.stride;
  if (panel.packed_fits(kernels, chunk.count)) {
    over_blocks(end - first, [&](std::int64_t offset, std::int64_t quads) {
      panel.packed_tile(kernels, codes, x.stride, chunk.count, first + offset, quads, sums.integers, offset > 0);
    });
    return;
  }
  sum_panel(
      kernels, codes, x.stride, chunk.count, first, end, sums.integers,
      [&](std::int64_t quad, std::int64_t count) { return panel.block(kernels, quad, count, work.block); },
      [&](std::int64_t quad, std::int64_t count) { return panel.ahead(quad, count); });
}

PanelOutput panel_output(std::int64_t panel, std::int64_t outputs, std::int64_t first_row, const float *scales,
                         const Addends &addends, float *y, std::int64_t y_stride) {
  const std::int64_t column = panel * kPanelRows;
  PanelOutput out;
  out.scales = scales ? scales + column : nullptr;
  out.bias = addends.bias ? addends.bias + column : nullptr;
  out.residual = addends.residual ? addends.residual + first_row * addends.residual_stride + column : nullptr;
  out.residual_stride = addends.residual_stride;
  out.y = y + first_row * y_stride + column;
  out.y_stride = y_stride;
  out.columns = static_cast<int>(std::min(kPanelRows, outputs - column));
  return out;
}

}  // namespace

std::size_t gemm_scratch_bytes(int threads) {
  return shared_bytes(threads) + static_cast<std::size_t>(threads) * sizeof(Workspace);
}

void linear(ThreadPool &pool, const Matrix &matrix, const QuantizedRows &x, float *y, std::int64_t y_stride,
            const Addends &addends, void *scratch) {
  check(matrix, x.columns);
  const GemmKernels &kernels = gemm_kernels();
  const std::int64_t chunks = ceil_div(x.rows, kChunkRows);
  share_panels(
      pool, scratch, ceil_div(matrix.rows, kPanelRows) * chunks, std::min(x.rows, kChunkRows),
      ceil_div(x.columns, kQuad), false,
      [&](std::int64_t index, std::int64_t first, std::int64_t end, Sums &sums, Sums &, Workspace &work) {
        const Chunk chunk(index % chunks, x.rows);
        sum_matrix_panel(kernels, Panel(matrix, index / chunks), x, chunk, first, end, sums, work);
      },
      [&](std::int64_t index, const Sums &sums, const Sums &) {
        const Chunk chunk(index % chunks, x.rows);
        PanelOutput out =
            panel_output(index / chunks, matrix.rows, chunk.first, matrix.scales, addends, y, y_stride);
        out.x_scales = x.scales + chunk.first;
        out.x_sums = x.sums + chunk.first;
        kernels.finish(sums.integers, chunk.count, out);
      });
}

void linear_gated(ThreadPool &pool, const Matrix &gate, const Matrix &up, const QuantizedRows &x, Activation kind,
                  float *y, std::int64_t y_stride, void *scratch) {
  check(gate, x.columns);
  check(up, x.columns);
  if (gate.rows != up.rows) {
    fail(EK_INVALID_ARGUMENT, "a gate of ", gate.rows, " outputs for ", up.rows, " of the other matrix");
  }
  const GemmKernels &kernels = gemm_kernels();
  const std::int64_t chunks = ceil_div(x.rows, kChunkRows);
  share_panels(
      pool, scratch, ceil_div(up.rows, kPanelRows) * chunks, std::min(x.rows, kChunkRows),
      ceil_div(x.columns, kQuad), true,
      [&](std::int64_t index, std::int64_t first, std::int64_t end, Sums &gate_sums, Sums &up_sums,
          Workspace &work) {
        const Chunk chunk(index % chunks, x.rows);
        sum_matrix_panel(kernels, Panel(gate, index / chunks), x, chunk, first, end, gate_sums, work);
        sum_matrix_panel(kernels, Panel(up, index / chunks), x, chunk, first, end, up_sums, work);
      },
      [&](std::int64_t index, const Sums &gate_sums, const Sums &up_sums) {
        const Chunk chunk(index % chunks, x.rows);
        const std::int64_t panel = index / chunks;
        PanelOutput out = panel_output(panel, up.rows, chunk.first, up.scales, Addends{}, y, y_stride);
        out.x_scales = x.scales + chunk.first;
        out.x_sums = x.sums + chunk.first;
        kernels.finish_gated(gate_sums.integers, up_sums.integers, chunk.count, gate.scales + panel * kPanelRows,
                             kind, out);
      });
}

void linear_float(ThreadPool &pool, const Matrix &matrix, const float *x, std::int64_t x_stride, std::int64_t rows,
                  float *y, std::int64_t y_stride, const Addends &addends, void *scratch) {
  const GemmKernels &kernels = gemm_kernels();
  const std::int64_t panels = ceil_div(matrix.rows, kPanelRows);
  // Of few panels, as a router or an adapter has, each is computed by several threads, for other rows of x.
  const std::int64_t shares = std::min(ceil_div(pool.size(), panels), ceil_div(rows, kLeastRows));
  const std::int64_t share = std::max<std::int64_t>(1, ceil_div(rows, std::max<std::int64_t>(shares, 1)));
  const std::int64_t parts = ceil_div(rows, share);
  pool.run(panels * parts, [&](std::int64_t task, int thread) {
    Workspace &work = workspace(pool, scratch, thread);
    const std::int64_t panel = task / parts, first_row = task % parts * share;
    const std::int64_t first_output = panel * kPanelRows;
    const auto weights = [&](std::int64_t first, std::int64_t depth) -> const float * {
      if (matrix.bits == 16) {
        const auto *stored = reinterpret_cast<const std::uint16_t *>(matrix.codes) + first_output * matrix.columns;
        kernels.widen_rows(stored + first, matrix.columns, std::min(kPanelRows, matrix.rows - first_output), depth,
                           work.panel);
      } else {
        const std::int64_t quads = ceil_div(depth, kQuad);
        kernels.widen_codes(Panel(matrix, panel).plain_block(first / kQuad, quads, work.block), quads, work.panel);
      }
      return work.panel;
    };
    over_chunks(std::min(share, rows - first_row), kChunkRows, [&](std::int64_t offset, std::int64_t count) {
      const std::int64_t first = first_row + offset;
      sum_float_panel(kernels, x + first * x_stride, x_stride, count, matrix.columns, work.sums.floats, weights);
      const float *scales = matrix.bits == 16 ? nullptr : matrix.scales;
      kernels.finish_float(work.sums.floats, count,
                           panel_output(panel, matrix.rows, first, scales, addends, y, y_stride));
    });
  });
}

Matrix matrix_rows(const Matrix &matrix, std::int64_t first, std::int64_t count) {
  Matrix part = matrix;
  part.rows = count;
  if (matrix.bits == 16) {
    part.codes += first * matrix.columns * 2;
    return part;
  }
  if (first % kPanelRows != 0) {
    fail(EK_INVALID_ARGUMENT, "rows from ", first, " on of a matrix of ", matrix.bits,
         " bits; parts begin at multiples of ", kPanelRows);
  }
  part.codes += first * ceil_div(matrix.columns, kQuad) * kQuad * matrix.bits / 8;
  if (matrix.bits == 4) part.group_scales += first * (matrix.columns / matrix.group);
  part.scales += first;
  return part;
}

}  // namespace edgekit
