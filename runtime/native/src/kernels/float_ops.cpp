#include "kernels/float_ops.h"

#include <atomic>
#include <cstring>

#include "cpu.h"
#include "error.h"
#include "kernels/float_kernels.h"

namespace edgekit {
namespace {

// Best first.
const FloatKernels *const kSets[] = {
#if defined(__x86_64__) || defined(_M_X64)
    &kFloatAvx512, &kFloatAvx2,
#elif defined(__aarch64__) || defined(_M_ARM64)
    &kFloatNeon,
#endif
    &kFloatScalar,
};

const FloatKernels *find(const char *name) {
  for (const FloatKernels *set : kSets) {
    if (can_use_instruction_set(set->name) && (name == nullptr || std::strcmp(name, set->name) == 0)) return set;
  }
  fail(EK_INVALID_ARGUMENT, "this process cannot use the instruction set \"", name, "\"");
}

std::atomic<const FloatKernels *> &chosen() {
  static std::atomic<const FloatKernels *> set{find(nullptr)};
  return set;
}

// Floats of one task of an operation that does little with each: enough to be worth handing to a thread.
constexpr std::int64_t kTask = 16384;

std::int64_t tasks(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

// Calls body(begin, end) for blocks of `count` items with `floats` floats each.
template <typename Body>
void for_blocks(ThreadPool &pool, std::int64_t count, std::int64_t floats, const Body &body) {
  const std::int64_t size = floats >= kTask ? 1 : kTask / (floats > 0 ? floats : 1);
  pool.run(tasks(count, size), [&](std::int64_t task, int) {
    const std::int64_t begin = task * size;
    body(begin, count - begin < size ? count : begin + size);
  });
}

// The first element of a row, for rows counted over the first three axes.
float *row_of(const Strided &x, std::int64_t row) {
  const std::int64_t i2 = row % x.shape[2], i1 = row / x.shape[2] % x.shape[1], i0 = row / (x.shape[2] * x.shape[1]);
  return x.data + i0 * x.stride[0] + i1 * x.stride[1] + i2 * x.stride[2];
}

// a is to stand before b, which has the lower index: larger, or NaN where b is a number.
bool before(float a, float b) { return a > b || (a != a && b == b); }

}  // namespace

const FloatKernels &float_kernels() { return *chosen().load(std::memory_order_relaxed); }

void float_use_instruction_set(const char *name) { chosen().store(find(name), std::memory_order_relaxed); }

void rms_norm(ThreadPool &pool, const Strided &x, const float *weight, float eps, const Strided &y) {
  const auto row_kernel = float_kernels().rms_norm;
  const std::int64_t columns = x.shape[3];
  for_blocks(pool, x.shape[0] * x.shape[1] * x.shape[2], columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) row_kernel(row_of(x, row), weight, columns, eps, row_of(y, row));
  });
}

void rope(ThreadPool &pool, const Strided &x, const float *cos, const float *sin, std::int64_t half, const Strided &y) {
  const auto row_kernel = float_kernels().rope;
  const std::int64_t columns = x.shape[3];
  for_blocks(pool, x.shape[0] * x.shape[1] * x.shape[2], columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t position = row % x.shape[2];
      row_kernel(row_of(x, row), cos + position * half, sin + position * half, half, columns, row_of(y, row));
    }
  });
}

void gated_act(ThreadPool &pool, const float *gate, std::int64_t gate_stride, const float *up, std::int64_t up_stride,
               std::int64_t rows, std::int64_t columns, Activation kind, float *y, std::int64_t y_stride) {
  const auto row_kernel = float_kernels().gated_act;
  for_blocks(pool, rows, columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      row_kernel(gate + row * gate_stride, up + row * up_stride, columns, kind, y + row * y_stride);
    }
  });
}

void softmax(ThreadPool &pool, const float *x, std::int64_t rows, std::int64_t columns, float *y) {
  if (columns == 0) return;
  const auto row_kernel = float_kernels().softmax;
  for_blocks(pool, rows, columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) row_kernel(x + row * columns, columns, y + row * columns);
  });
}

void topk(ThreadPool &pool, const float *x, std::int64_t rows, std::int64_t columns, std::int64_t k, float *values,
          std::int64_t *indices) {
  if (k == 0) return;
  for_blocks(pool, rows, columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      // The largest so far, in order; a later element goes behind its equals.
      float *best = values + row * k;
      std::int64_t *at = indices + row * k;
      std::int64_t filled = 0;
      for (std::int64_t i = 0; i < columns; ++i) {
        const float value = x[row * columns + i];
        if (filled == k && !before(value, best[k - 1])) continue;
        std::int64_t place = filled < k ? filled++ : k - 1;
        for (; place > 0 && before(value, best[place - 1]); --place) {
          best[place] = best[place - 1];
          at[place] = at[place - 1];
        }
        best[place] = value;
        at[place] = i;
      }
    }
  });
}

// The following move more memory than they compute: what the compiler makes of the loops is enough.

void add(ThreadPool &pool, const float *a, const float *b, std::int64_t count, float *y) {
  for_blocks(pool, count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = a[i] + b[i];
  });
}

void multiply(ThreadPool &pool, const float *a, const float *b, std::int64_t count, float *y) {
  for_blocks(pool, count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = a[i] * b[i];
  });
}

void scale(ThreadPool &pool, const float *x, float factor, std::int64_t count, float *y) {
  for_blocks(pool, count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = x[i] * factor;
  });
}

void widen(const std::uint16_t *x, std::int64_t count, float *y) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(x[i]) << 16;
    std::memcpy(y + i, &bits, sizeof bits);
  }
}

void exp_array(const float *x, std::int64_t count, float *y) { float_kernels().exp(x, count, y); }

}  // namespace edgekit
