// Products with stored matrices. Every instruction set computes the same integers and the same floats.
#ifndef EDGEKIT_KERNELS_GEMM_H
#define EDGEKIT_KERNELS_GEMM_H

#include <cstddef>
#include <cstdint>

#include "kernels/matrix.h"
#include "thread_pool.h"

namespace edgekit {

// What can be added to a product while it is stored: bias [N], and residual [M, N] with a row distance in floats.
struct Addends {
  const float *bias = nullptr;
  const float *residual = nullptr;
  std::int64_t residual_stride = 0;
};

// Bytes of scratch memory that the calls below need for `threads` threads, whatever the shapes. 64-byte aligned.
std::size_t gemm_scratch_bytes(int threads);

// Bytes that quantize_rows needs for codes, scales and sums of [rows, columns].
std::size_t quantized_bytes(std::int64_t rows, std::int64_t columns);

// Rounds x [rows, columns] (row distance `stride` floats) to int8 per row into `memory` (quantized_bytes, 64-byte
// aligned): scale = max|x| / 127, code = rint(x * (127 / max|x|)). A row of zeros has scale 0; a row with a value
// that is not finite has codes 0 and a scale that is not finite.
QuantizedRows quantize_rows(ThreadPool &pool, const float *x, std::int64_t stride, std::int64_t rows,
                            std::int64_t columns, void *memory);

// y [M, N] = x @ matrix.T + addends for a matrix of 4 or 8 bits: float(int32) * (activation scale * weight scale),
// then + bias, then + residual. y may be the residual.
void linear(ThreadPool &pool, const Matrix &matrix, const QuantizedRows &x, float *y, std::int64_t y_stride,
            const Addends &addends, void *scratch);

// y [M, N] = activation(x @ gate.T) * (x @ up.T) for two matrices of 4 or 8 bits and equal shapes.
void linear_gated(ThreadPool &pool, const Matrix &gate, const Matrix &up, const QuantizedRows &x, Activation kind,
                  float *y, std::int64_t y_stride, void *scratch);

// y [M, N] = x @ matrix.T + addends without rounding x; any bits. y may be the residual.
void linear_float(ThreadPool &pool, const Matrix &matrix, const float *x, std::int64_t x_stride, std::int64_t rows,
                  float *y, std::int64_t y_stride, const Addends &addends, void *scratch);

// The rows first..first+count of a matrix; `first` is a multiple of 64 for 4 and 8 bits.
Matrix matrix_rows(const Matrix &matrix, std::int64_t first, std::int64_t count);

// z [M, table.rows] = x @ table.T, with x rounded to int8 (table of 8 bits).
void table_scores(ThreadPool &pool, const Table &table, const QuantizedRows &x, float *z, std::int64_t z_stride,
                  void *scratch);

// The same without rounding x (table of 16 or 8 bits).
void table_scores_float(ThreadPool &pool, const Table &table, const float *x, std::int64_t x_stride,
                        std::int64_t rows, float *z, std::int64_t z_stride, void *scratch);

// y [M, table.columns] += p [M, table.rows] @ table (soft embedding). With a table of 8 bits p times the row scales
// is taken as two signed 8-bit digits with a step for every row of p and 1024 rows of the table (error of an entry
// at most 1 / 65278 of the largest), else in floats. Where none of the 1024 weights exceeds the row's `fine_above` [M],
// one digit serves: it is rounded up or down (error of an entry below 1 / 127 of the largest) so that sums over
// neighbours keep their value. Null: two digits everywhere. Takes the longer the more tokens have a p that is not 0 in
// some row; p of 0 count for nothing, even where the table holds what is not finite.
void table_mix(ThreadPool &pool, const Table &table, const float *p, std::int64_t p_stride, std::int64_t rows,
               const float *fine_above, float *y, std::int64_t y_stride, void *scratch);

// Names of the instruction sets that this process may use, best first ("avx512vnni", "avxvnni", "avx2", "i8mm",
// "dotprod", "scalar"); null after the last.
const char *const *gemm_instruction_sets();

// Forces one of them, for tests; null chooses the best again. Throws Error (EK_INVALID_ARGUMENT) for an unknown one.
void gemm_use_instruction_set(const char *name);

}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_GEMM_H
