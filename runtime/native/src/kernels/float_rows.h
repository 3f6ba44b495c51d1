// Row operations of float_ops.h, written once for every instruction set: `L` is a lanes struct as vector_math.h has
// them. Nothing is fused, and sums always run in the same 64 parts, so that all instruction sets return the same bits.
#ifndef EDGEKIT_KERNELS_FLOAT_ROWS_H
#define EDGEKIT_KERNELS_FLOAT_ROWS_H

#include <math.h>

#include <cstdint>

#include "kernels/float_kernels.h"
#include "kernels/vector_math.h"

namespace edgekit {
namespace {

// Element i of a row belongs to part i % kParts of its sum.
constexpr int kParts = 64;

EK_VECTOR_INLINE int at_most(std::int64_t count, int width) {
  return count < width ? static_cast<int>(count) : width;
}

// Calls body(offset, count) for every vector of `total` floats; only the last count may be below the width.
template <typename L, typename Body>
EK_VECTOR_INLINE void for_each_vector(std::int64_t total, const Body &body) {
  std::int64_t i = 0;
  for (; i + L::kWidth <= total; i += L::kWidth) body(i, L::kWidth);
  if (i < total) body(i, static_cast<int>(total - i));
}

template <typename L>
EK_VECTOR_INLINE typename L::Float load_some(const float *p, int count) {
  return count == L::kWidth ? L::load(p) : L::load_first(p, count);
}

template <typename L>
EK_VECTOR_INLINE void store_some(float *p, typename L::Float x, int count) {
  if (count == L::kWidth) {
    L::store(p, x);
  } else {
    L::store_first(p, x, count);
  }
}

// Sum of term(x[i]), where term(0) is 0.
template <typename L, typename Term>
EK_VECTOR_INLINE float sum_of(const float *x, std::int64_t count, const Term &term) {
  constexpr int kVectors = kParts / L::kWidth;
  typename L::Float sums[kVectors];
  for (int j = 0; j < kVectors; ++j) sums[j] = L::set(0.0f);
  std::int64_t i = 0;
  for (; i + kParts <= count; i += kParts) {
    for (int j = 0; j < kVectors; ++j) sums[j] = L::add(sums[j], term(L::load(x + i + j * L::kWidth)));
  }
  float parts[kParts];
  for (int j = 0; j < kVectors; ++j) L::store(parts + j * L::kWidth, sums[j]);
  for (int j = 0; j < kVectors && i < count; ++j, i += L::kWidth) {
    const typename L::Float last = L::load_first(x + i, at_most(count - i, L::kWidth));
    L::store(parts + j * L::kWidth, L::add(L::load(parts + j * L::kWidth), term(last)));
  }
  for (int half = kParts / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) parts[j] += parts[j + half];
  }
  return parts[0];
}

template <typename L>
void rms_norm_row(const float *x, const float *weight, std::int64_t count, float eps, float *y) {
  const float sum = sum_of<L>(x, count, [](typename L::Float v) { return L::mul(v, v); });
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(count) + eps);
  const typename L::Float factors = L::set(factor);
  if (weight == nullptr) {
    for_each_vector<L>(count, [&](std::int64_t i, int n) {
      store_some<L>(y + i, L::mul(load_some<L>(x + i, n), factors), n);
    });
  } else {
    for_each_vector<L>(count, [&](std::int64_t i, int n) {
      store_some<L>(y + i, L::mul(L::mul(load_some<L>(x + i, n), factors), load_some<L>(weight + i, n)), n);
    });
  }
}

template <typename L>
void rope_row(const float *x, const float *cos, const float *sin, std::int64_t half, std::int64_t count, float *y) {
  for_each_vector<L>(half, [&](std::int64_t i, int n) {
    const typename L::Float c = load_some<L>(cos + i, n), s = load_some<L>(sin + i, n);
    const typename L::Float a = load_some<L>(x + i, n), b = load_some<L>(x + half + i, n);
    store_some<L>(y + i, L::sub(L::mul(a, c), L::mul(b, s)), n);
    store_some<L>(y + half + i, L::add(L::mul(b, c), L::mul(a, s)), n);
  });
  if (y == x) return;
  for_each_vector<L>(count - 2 * half, [&](std::int64_t i, int n) {
    store_some<L>(y + 2 * half + i, load_some<L>(x + 2 * half + i, n), n);
  });
}

template <typename L>
void gated_act_row(const float *gate, const float *up, std::int64_t count, Activation kind, float *y) {
  if (kind == Activation::silu) {
    for_each_vector<L>(count, [&](std::int64_t i, int n) {
      store_some<L>(y + i, L::mul(vector_silu<L>(load_some<L>(gate + i, n)), load_some<L>(up + i, n)), n);
    });
  } else {
    for_each_vector<L>(count, [&](std::int64_t i, int n) {
      store_some<L>(y + i, L::mul(vector_gelu_tanh<L>(load_some<L>(gate + i, n)), load_some<L>(up + i, n)), n);
    });
  }
}

template <typename L>
void exp_row(const float *x, std::int64_t count, float *y) {
  for_each_vector<L>(count, [&](std::int64_t i, int n) {
    store_some<L>(y + i, vector_exp<L>(load_some<L>(x + i, n)), n);
  });
}

template <typename L>
void softmax_row(const float *x, std::int64_t count, float *y) {
  // A NaN may get lost here; it comes back with its exponential.
  float largest = x[0];
  std::int64_t i = 0;
  if (count >= L::kWidth) {
    typename L::Float most = L::load(x);
    for (i = L::kWidth; i + L::kWidth <= count; i += L::kWidth) most = L::max(most, L::load(x + i));
    float lanes[L::kWidth];
    L::store(lanes, most);
    for (int j = 0; j < L::kWidth; ++j) largest = largest < lanes[j] ? lanes[j] : largest;
  }
  for (; i < count; ++i) largest = largest < x[i] ? x[i] : largest;

  const typename L::Float shift = L::set(largest);
  for_each_vector<L>(count, [&](std::int64_t at, int n) {
    store_some<L>(y + at, vector_exp<L>(L::sub(load_some<L>(x + at, n), shift)), n);
  });
  const typename L::Float sum = L::set(sum_of<L>(y, count, [](typename L::Float v) { return v; }));
  for_each_vector<L>(count, [&](std::int64_t at, int n) {
    store_some<L>(y + at, L::div(load_some<L>(y + at, n), sum), n);
  });
}

template <typename L>
constexpr FloatKernels float_kernels_of(const char *name, void (*attention)(const AttentionTask &)) {
  return {name, rms_norm_row<L>, rope_row<L>, gated_act_row<L>, softmax_row<L>, exp_row<L>, attention};
}

}  // namespace
}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_FLOAT_ROWS_H
