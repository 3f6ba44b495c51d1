// Element-wise and row-wise operations in float32. Rows are contiguous along the last axis.
#ifndef EDGEKIT_KERNELS_FLOAT_OPS_H
#define EDGEKIT_KERNELS_FLOAT_OPS_H

#include <cstddef>
#include <cstdint>

#include "kernels/matrix.h"
#include "thread_pool.h"

namespace edgekit {

// An array of up to four axes with distances in elements; the last axis is contiguous. [shape0, shape1, shape2, D].
struct Strided {
  float *data = nullptr;
  std::int64_t shape[4] = {1, 1, 1, 1};
  std::int64_t stride[4] = {0, 0, 0, 1};
};

// y = x / sqrt(mean(x^2) + eps) * weight over the last axis (weight may be null); y may be x.
void rms_norm(ThreadPool &pool, const Strided &x, const float *weight, float eps, const Strided &y);

// Rotate-half position embedding of x [1, heads, T, D] with cos, sin [T, R] (contiguous); elements beyond 2R are copied.
void rope(ThreadPool &pool, const Strided &x, const float *cos, const float *sin, std::int64_t half, const Strided &y);

// y = activation(gate) * up, all [rows, columns] with row distances in floats. y may be gate.
void gated_act(ThreadPool &pool, const float *gate, std::int64_t gate_stride, const float *up, std::int64_t up_stride,
               std::int64_t rows, std::int64_t columns, Activation kind, float *y, std::int64_t y_stride);

// Softmax over the last axis of x [rows, columns], contiguous; y may be x.
void softmax(ThreadPool &pool, const float *x, std::int64_t rows, std::int64_t columns, float *y);

// The k largest of every row of x [rows, columns], descending, ties to the lower index: values, indices [rows, k].
void topk(ThreadPool &pool, const float *x, std::int64_t rows, std::int64_t columns, std::int64_t k, float *values,
          std::int64_t *indices);

// y = a op b for contiguous arrays of equal size.
void add(ThreadPool &pool, const float *a, const float *b, std::int64_t count, float *y);
void multiply(ThreadPool &pool, const float *a, const float *b, std::int64_t count, float *y);
// y = x * factor.
void scale(ThreadPool &pool, const float *x, float factor, std::int64_t count, float *y);

// bfloat16 to float32.
void widen(const std::uint16_t *x, std::int64_t count, float *y);

// e^x with an error of at most 2 units in the last place; 0 below -87.3, e^88.7 at most.
void exp_array(const float *x, std::int64_t count, float *y);

// What the functions above and attention use: "avx512", "avx2", "neon" or "scalar"; null chooses the best again.
void float_use_instruction_set(const char *name);

}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_FLOAT_OPS_H
