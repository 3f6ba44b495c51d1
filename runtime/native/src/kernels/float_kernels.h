// What one instruction set does for float_ops.h and attention.h, and what it is given.
#ifndef EDGEKIT_KERNELS_FLOAT_KERNELS_H
#define EDGEKIT_KERNELS_FLOAT_KERNELS_H

#include <cstdint>

#include "kernels/matrix.h"

namespace edgekit {
namespace {

// Not shared between files that are compiled for different instruction sets (see vector_math.h).
constexpr std::int64_t round_up(std::int64_t x, std::int64_t unit) { return (x + unit - 1) / unit * unit; }

}  // namespace

// Queries that an instruction set treats together divide this number.
constexpr std::int64_t kMostLanes = 32;

// Memory of one task, each part 64-byte aligned. What holds queries is cut into panels of as many queries as the
// instruction set treats together; a panel's queries lie side by side. D is the head dimension, R the rows of a
// task rounded up to kMostLanes, B the key block; [..] are floats.
struct AttentionScratch {
  float *q;        // [R / lanes, D, lanes]
  float *y;        // [R / lanes, D rounded up to 16, lanes]: sums of values, not divided yet
  float *keys;     // [D, B, with key_stride]: keys transposed
  float *values;   // [B, D rounded up to 16, with value_stride]
  float *scores;   // [B, lanes]
  float *mask;     // [B, lanes]
  float *largest;  // [R]: the largest score so far
  float *sums;     // [R]: the sum of weights so far
  float *factor;   // [lanes]
  std::int64_t key_stride, value_stride;
};

// Some queries of the heads that share one KV head. Row r of them is position r / group of head r % group, so that
// neighbours see about the same keys. Strides are in floats.
// Keys and values that lie at a regular distance. Those of KV head h begin k_head (v_head) floats times h further on.
struct AttentionKeys {
  const float *k = nullptr, *v = nullptr;
  std::int64_t count = 0;
  std::int64_t k_head = 0, v_head = 0, k_row = 0, v_row = 0;
};

struct AttentionTask {
  std::int64_t first = 0, rows = 0;  // rows first..first+rows
  std::int64_t group = 1;            // heads per KV head
  std::int64_t head_dim = 0;
  std::int64_t key_block = 0;  // keys at a time: a multiple of 48 (all tile heights, all vector widths)
  const float *q = nullptr;
  std::int64_t q_head = 0, q_row = 0;
  const AttentionKeys *pieces = nullptr;  // one behind the other, [piece_count]
  std::int64_t piece_count = 0, keys = 0;  // in all of them
  std::int64_t kv_head = 0;
  const float *mask = nullptr;  // [positions, keys]
  float scale = 1.0f;
  float *y = nullptr;
  std::int64_t y_head = 0, y_row = 0;
  AttentionScratch scratch{};
};

// Rows are contiguous. All but attention give the same bits on every instruction set.
struct FloatKernels {
  const char *name;
  void (*rms_norm)(const float *x, const float *weight, std::int64_t count, float eps, float *y);
  void (*rope)(const float *x, const float *cos, const float *sin, std::int64_t half, std::int64_t count, float *y);
  void (*gated_act)(const float *gate, const float *up, std::int64_t count, Activation kind, float *y);
  void (*softmax)(const float *x, std::int64_t count, float *y);
  void (*exp)(const float *x, std::int64_t count, float *y);
  void (*attention)(const AttentionTask &task);
};

// What the process uses now.
const FloatKernels &float_kernels();

extern const FloatKernels kFloatScalar;
void attention_scalar(const AttentionTask &task);
#if defined(__x86_64__) || defined(_M_X64)
extern const FloatKernels kFloatAvx2, kFloatAvx512;
void attention_avx2(const AttentionTask &task);
void attention_avx512(const AttentionTask &task);
#elif defined(__aarch64__) || defined(_M_ARM64)
extern const FloatKernels kFloatNeon;
void attention_neon(const AttentionTask &task);
#endif

}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_FLOAT_KERNELS_H
