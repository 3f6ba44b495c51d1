// What the native engine's kernels reach on this machine: the rates that the time of a pass follows from.
#ifndef EDGEKIT_BENCH_KERNEL_RATES_H
#define EDGEKIT_BENCH_KERNEL_RATES_H

#include <cstdint>

#include "flash_file.h"
#include "thread_pool.h"

namespace edgekit {

// Rows of a canvas, and of what goes to one of many experts.
constexpr std::int64_t kManyRows = 256, kFewRows = 16;

// More than caches hold, every byte 1. Throws Error (EK_OUT_OF_MEMORY).
AlignedMemory large_memory();

// Operations per second, a product and a sum being two, of products of so many rows with 4-bit weights that lie one behind
// the other in `memory`, for about `seconds`. Throws Error (EK_OUT_OF_MEMORY).
double product_rate(ThreadPool &pool, const AlignedMemory &memory, std::int64_t rows, double seconds);

// The same of attention of kManyRows rows over as many keys, 32 heads of 128.
double attention_rate(ThreadPool &pool, double seconds);

}  // namespace edgekit

#endif  // EDGEKIT_BENCH_KERNEL_RATES_H
