// Attention of a canvas over [prefix KV ; canvas].
#ifndef EDGEKIT_KERNELS_ATTENTION_H
#define EDGEKIT_KERNELS_ATTENTION_H

#include <cstddef>
#include <cstdint>

#include "kernels/float_ops.h"
#include "thread_pool.h"

namespace edgekit {

// Bytes of 64-byte aligned scratch memory for `threads` threads, heads of up to `head_dim` and `keys` keys in all.
std::size_t attention_scratch_bytes(int threads, std::int64_t head_dim, std::int64_t keys);

// q [1, heads, T, D]; k, v [1, kv_heads, T, D]; prefix_k, prefix_v [1, kv_heads, P, D] (P may be 0); head h reads KV
// head h / (heads / kv_heads). `mask` [T, P + T] is additive and contiguous, or null: every query sees every key.
// y [1, heads, T, D], usually with the strides of [1, T, heads * D] so that joining heads is free.
// Scores and sums in float32; the result does not depend on the number of threads.
void attention(ThreadPool &pool, const Strided &q, const Strided &k, const Strided &v, const Strided &prefix_k,
               const Strided &prefix_v, const float *mask, float scale, const Strided &y, void *scratch);

}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_ATTENTION_H
