// The functions of kernels/gemm.h, for tests and benchmarks in Python.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "edgekit.h"
#include "error.h"
#include "kernels/gemm.h"
#include "thread_pool.h"

#if defined(__x86_64__)
#include "kernels/x86_intrinsics.h"
#endif

namespace {

// Threads and their scratch memory, filled with garbage so that nothing can rely on zeros.
struct Gemm {
  explicit Gemm(int threads)
      : pool(threads), bytes(edgekit::gemm_scratch_bytes(threads)), memory(new unsigned char[bytes + 64]) {
    scratch = reinterpret_cast<void *>((reinterpret_cast<std::uintptr_t>(memory.get()) + 63) / 64 * 64);
    for (std::size_t i = 0; i < bytes; ++i) static_cast<unsigned char *>(scratch)[i] = 0xa5;
  }

  edgekit::ThreadPool pool;
  std::size_t bytes;
  std::unique_ptr<unsigned char[]> memory;
  void *scratch = nullptr;
};

template <typename Body>
int guarded(Body &&body) {
  try {
    body();
    return EK_OK;
  } catch (const edgekit::Error &error) {
    return error.status();
  }
}

edgekit::Activation activation(int gelu) {
  return gelu != 0 ? edgekit::Activation::gelu_tanh : edgekit::Activation::silu;
}

}  // namespace

extern "C" {

// The name of the instruction set number `index`, null after the last.
EK_API const char *ekt_gemm_instruction_set(int index) { return edgekit::gemm_instruction_sets()[index]; }

EK_API int ekt_gemm_use(const char *name) {
  return guarded([&] { edgekit::gemm_use_instruction_set(name); });
}

EK_API Gemm *ekt_gemm_open(int threads) { return new (std::nothrow) Gemm(threads); }

EK_API void ekt_gemm_close(Gemm *gemm) { delete gemm; }

EK_API std::uint64_t ekt_quantized_bytes(std::int64_t rows, std::int64_t columns) {
  return edgekit::quantized_bytes(rows, columns);
}

EK_API void ekt_quantize_rows(Gemm *gemm, const float *x, std::int64_t stride, std::int64_t rows,
                              std::int64_t columns, void *memory, edgekit::QuantizedRows *out) {
  *out = edgekit::quantize_rows(gemm->pool, x, stride, rows, columns, memory);
}

EK_API int ekt_linear(Gemm *gemm, const edgekit::Matrix *matrix, const edgekit::QuantizedRows *x, float *y,
                      std::int64_t y_stride, const edgekit::Addends *addends) {
  return guarded([&] { edgekit::linear(gemm->pool, *matrix, *x, y, y_stride, *addends, gemm->scratch); });
}

EK_API int ekt_linear_gated(Gemm *gemm, const edgekit::Matrix *gate, const edgekit::Matrix *up,
                            const edgekit::QuantizedRows *x, int gelu, float *y, std::int64_t y_stride) {
  return guarded(
      [&] { edgekit::linear_gated(gemm->pool, *gate, *up, *x, activation(gelu), y, y_stride, gemm->scratch); });
}

EK_API int ekt_linear_float(Gemm *gemm, const edgekit::Matrix *matrix, const float *x, std::int64_t x_stride,
                            std::int64_t rows, float *y, std::int64_t y_stride, const edgekit::Addends *addends) {
  return guarded([&] {
    edgekit::linear_float(gemm->pool, *matrix, x, x_stride, rows, y, y_stride, *addends, gemm->scratch);
  });
}

EK_API int ekt_matrix_rows(const edgekit::Matrix *matrix, std::int64_t first, std::int64_t count,
                           edgekit::Matrix *out) {
  return guarded([&] { *out = edgekit::matrix_rows(*matrix, first, count); });
}

EK_API int ekt_table_scores(Gemm *gemm, const edgekit::Table *table, const edgekit::QuantizedRows *x, float *z,
                            std::int64_t z_stride) {
  return guarded([&] { edgekit::table_scores(gemm->pool, *table, *x, z, z_stride, gemm->scratch); });
}

EK_API int ekt_table_scores_float(Gemm *gemm, const edgekit::Table *table, const float *x, std::int64_t x_stride,
                                  std::int64_t rows, float *z, std::int64_t z_stride) {
  return guarded(
      [&] { edgekit::table_scores_float(gemm->pool, *table, x, x_stride, rows, z, z_stride, gemm->scratch); });
}

EK_API int ekt_table_mix(Gemm *gemm, const edgekit::Table *table, const float *p, std::int64_t p_stride,
                         std::int64_t rows, const float *fine_above, float *y, std::int64_t y_stride) {
  return guarded(
      [&] { edgekit::table_mix(gemm->pool, *table, p, p_stride, rows, fine_above, y, y_stride, gemm->scratch); });
}

}  // extern "C"
