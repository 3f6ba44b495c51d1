#include "kernels/gemm.h"
#include "kernels/gemm_kernels.h"
#include "kernels/gemm_workspace.h"

namespace edgekit {
namespace {

// Elements that are worth a task: waking a thread takes as long as rounding some ten thousand.
constexpr std::int64_t kTaskElements = 32768;

// An odd number of cache lines, so that equal columns of neighbouring rows do not compete for one set of a cache.
std::int64_t code_stride(std::int64_t columns) {
  const std::int64_t lines = ceil_div(columns, 64);
  return (lines | 1) * 64;
}

// Of scales, and of sums.
std::int64_t word_bytes(std::int64_t rows) { return round_up(rows * 4, 64); }

}  // namespace

std::size_t quantized_bytes(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>(rows * code_stride(columns) + 2 * word_bytes(rows));
}

QuantizedRows quantize_rows(ThreadPool &pool, const float *x, std::int64_t stride, std::int64_t rows,
                            std::int64_t columns, void *memory) {
  QuantizedRows out;
  out.rows = rows;
  out.columns = columns;
  out.stride = code_stride(columns);
  auto *bytes = static_cast<std::int8_t *>(memory);
  out.codes = bytes;
  out.scales = reinterpret_cast<float *>(bytes + rows * out.stride);
  out.sums = reinterpret_cast<std::int32_t *>(bytes + rows * out.stride + word_bytes(rows));
  const GemmKernels &kernels = gemm_kernels();
  const std::int64_t task_rows = std::max<std::int64_t>(1, kTaskElements / std::max<std::int64_t>(1, columns));
  pool.run(ceil_div(rows, task_rows), [&](std::int64_t task, int) {
    const std::int64_t end = std::min(rows, (task + 1) * task_rows);
    for (std::int64_t row = task * task_rows; row < end; ++row) {
      kernels.quantize_row(x + row * stride, columns, out.stride, out.codes + row * out.stride, out.scales + row,
                           out.sums + row);
    }
  });
  return out;
}

}  // namespace edgekit
