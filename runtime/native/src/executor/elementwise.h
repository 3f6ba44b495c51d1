// The small operations of a program that no kernel is worth: broadcasting arithmetic, copies.
#ifndef EDGEKIT_EXECUTOR_ELEMENTWISE_H
#define EDGEKIT_EXECUTOR_ELEMENTWISE_H

#include <cstdint>

#include "kernels/float_ops.h"
#include "thread_pool.h"

namespace edgekit {

enum class Binary { add, multiply };

// y = a op b, as numpy broadcasts: an axis of length 1 of a or b is repeated. y may be an operand of equal layout.
void binary(ThreadPool &pool, Binary op, const Strided &a, const Strided &b, const Strided &y);

// The same for arrays whose elements lie in memory in the same order.
void binary_flat(ThreadPool &pool, Binary op, const float *a, const float *b, std::int64_t count, float *y);

// y = x, element by element; shapes are equal.
void copy(ThreadPool &pool, const Strided &x, const Strided &y);

}  // namespace edgekit

#endif  // EDGEKIT_EXECUTOR_ELEMENTWISE_H
