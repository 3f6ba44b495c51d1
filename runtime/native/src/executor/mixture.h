// The `experts` op: rows grouped per expert, so that each expert is one product over its rows.
#ifndef EDGEKIT_EXECUTOR_MIXTURE_H
#define EDGEKIT_EXECUTOR_MIXTURE_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "executor/program.h"
#include "kernels/matrix.h"
#include "thread_pool.h"

namespace edgekit {

// What does not change between calls.
struct MixtureShape {
  std::int64_t experts = 0, chosen = 0;  // chosen experts per row
  std::int64_t hidden = 0, width = 0;    // expert: hidden -> 2 * width -> hidden
  Activation activation = Activation::silu;
  bool rounded = false;  // some expert's matrices have 4 or 8 bits
  bool floating = false;  // some have 16
};

// Bytes of scratch memory for `rows` rows.
std::size_t mixture_bytes(const MixtureShape &shape, std::int64_t rows, int threads);

// y [rows, hidden] = sum over j of weight[row, j] * expert index[row, j] (x[row]), added in ascending order of
// expert whatever the order in which they come. `quantized` is x rounded; null where no expert wants it.
// Throws Error (EK_MALFORMED_FILE) for an index that is no expert, and what `each` throws.
void mixture(ThreadPool &pool, const MixtureShape &shape, std::int64_t rows, const float *x,
             const QuantizedRows *quantized, const std::int64_t *index, const float *weight, const ForEachExpert &each,
             float *y, void *memory, void *gemm_scratch);

// Hands out the numbers of experts that are there, each once and in any order; `rows` is as for ForEachExpert.
using EachNumber = std::function<void(const std::vector<std::int64_t> &rows, const std::function<void(std::size_t)> &use)>;
// y [count, hidden] of the rows x [count, hidden] of an expert.
using ComputeExpert = std::function<void(std::size_t expert, const float *x, std::int64_t count, float *y)>;

// The same with experts that `compute` runs, one after the other. `memory` is that of a shape that is floating.
void mixture_of(ThreadPool &pool, const MixtureShape &shape, std::int64_t rows, const float *x, const std::int64_t *index,
                const float *weight, const EachNumber &each, const ComputeExpert &compute, float *y, void *memory);

}  // namespace edgekit

#endif  // EDGEKIT_EXECUTOR_MIXTURE_H
