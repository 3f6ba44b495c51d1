// Attention of some positions over keys that lie in several pieces, such as [prefix KV ; canvas].
#ifndef EDGEKIT_KERNELS_ATTENTION_H
#define EDGEKIT_KERNELS_ATTENTION_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/float_ops.h"
#include "thread_pool.h"

namespace edgekit {

// Bytes of 64-byte aligned scratch memory for `threads` threads and heads of up to `head_dim`, whatever the number of keys.
std::size_t attention_scratch_bytes(int threads, std::int64_t head_dim);

// Keys and values [1, kv_heads, count, D]; count may be 0.
struct KeyPiece {
  Strided keys, values;
};

// Rows first..first+count of an array [1, heads, T, D].
Strided rows_of(const Strided &all, std::int64_t first, std::int64_t count);

// Rows start..start+count of keys [kv_heads, capacity, D] at `data` and of the values behind them.
KeyPiece keys_at(float *data, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t capacity, std::int64_t start,
                 std::int64_t count);

// q [1, heads, T, D] over the keys of all pieces, one behind the other, S in all; head h reads KV head
// h / (heads / kv_heads). `mask` [T, S] is additive and contiguous, or null: every query sees every key.
// y [1, heads, T, D], usually with the strides of [1, T, heads * D] so that joining heads is free.
// Scores and sums in float32. What a query gets depends on its keys alone: not on the pieces they lie in, on the other
// queries, or on the number of threads.
void attention(ThreadPool &pool, const Strided &q, const std::vector<KeyPiece> &pieces, const float *mask, float scale,
               const Strided &y, void *scratch);

}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_ATTENTION_H
