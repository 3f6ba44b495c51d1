#include "executor/elementwise.h"

#include <algorithm>
#include <cstring>

namespace edgekit {
namespace {

// Elements per task: small enough to share out, large enough to be worth a task.
constexpr std::int64_t kBlock = 16384;

std::int64_t blocks(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

// Calls body(row) for every row of an array [shape0, shape1, shape2, *], in blocks.
template <typename Body>
void for_rows(ThreadPool &pool, const std::int64_t *shape, Body &&body) {
  const std::int64_t rows = shape[0] * shape[1] * shape[2];
  const std::int64_t each = std::max<std::int64_t>(1, kBlock / std::max<std::int64_t>(1, shape[3]));
  pool.run(blocks(rows, each), [&](std::int64_t task, int) {
    const std::int64_t stop = std::min(rows, (task + 1) * each);
    for (std::int64_t row = task * each; row < stop; ++row) {
      const std::int64_t i2 = row % shape[2], i1 = row / shape[2] % shape[1], i0 = row / (shape[1] * shape[2]);
      body(i0, i1, i2);
    }
  });
}

template <typename Function>
void binary_row(const float *a, std::int64_t a_step, const float *b, std::int64_t b_step, std::int64_t count, float *y,
                Function function) {
  if (a_step == 1 && b_step == 1) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = function(a[i], b[i]);
  } else if (a_step == 1 && b_step == 0) {
    const float right = *b;
    for (std::int64_t i = 0; i < count; ++i) y[i] = function(a[i], right);
  } else {
    for (std::int64_t i = 0; i < count; ++i) y[i] = function(a[i * a_step], b[i * b_step]);
  }
}

template <typename Function>
void binary_rows(ThreadPool &pool, const Strided &a, const Strided &b, const Strided &y, Function function) {
  std::int64_t a_stride[4], b_stride[4];
  for (int i = 0; i < 4; ++i) {
    a_stride[i] = a.shape[i] == 1 ? 0 : a.stride[i];
    b_stride[i] = b.shape[i] == 1 ? 0 : b.stride[i];
  }
  for_rows(pool, y.shape, [&](std::int64_t i0, std::int64_t i1, std::int64_t i2) {
    binary_row(a.data + i0 * a_stride[0] + i1 * a_stride[1] + i2 * a_stride[2], a_stride[3],
               b.data + i0 * b_stride[0] + i1 * b_stride[1] + i2 * b_stride[2], b_stride[3], y.shape[3],
               y.data + i0 * y.stride[0] + i1 * y.stride[1] + i2 * y.stride[2], function);
  });
}

}  // namespace

void binary(ThreadPool &pool, Binary op, const Strided &a, const Strided &b, const Strided &y) {
  switch (op) {
    case Binary::add:
      return binary_rows(pool, a, b, y, [](float p, float q) { return p + q; });
    case Binary::multiply:
      return binary_rows(pool, a, b, y, [](float p, float q) { return p * q; });
  }
}

void binary_flat(ThreadPool &pool, Binary op, const float *a, const float *b, std::int64_t count, float *y) {
  return op == Binary::add ? add(pool, a, b, count, y) : multiply(pool, a, b, count, y);
}

void copy(ThreadPool &pool, const Strided &x, const Strided &y) {
  for_rows(pool, y.shape, [&](std::int64_t i0, std::int64_t i1, std::int64_t i2) {
    const float *from = x.data + i0 * x.stride[0] + i1 * x.stride[1] + i2 * x.stride[2];
    float *to = y.data + i0 * y.stride[0] + i1 * y.stride[1] + i2 * y.stride[2];
    if (x.stride[3] == 1) {
      std::memcpy(to, from, sizeof(float) * static_cast<std::size_t>(y.shape[3]));
    } else {
      for (std::int64_t i = 0; i < y.shape[3]; ++i) to[i] = from[i * x.stride[3]];
    }
  });
}

}  // namespace edgekit
