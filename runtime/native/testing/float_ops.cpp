// The functions of kernels/float_ops.h and kernels/attention.h, for tests and benchmarks in Python.
#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "bench/peak.h"
#include "cpu.h"
#include "edgekit.h"
#include "error.h"
#include "kernels/attention.h"
#include "kernels/float_ops.h"
#include "kernels/routing.h"
#include "thread_pool.h"

using edgekit::Strided;
using edgekit::ThreadPool;

extern "C" {

// 1 if the process may use that instruction set (null: the best one), and does from now on.
EK_API int ekt_float_use(const char *name) {
  try {
    edgekit::float_use_instruction_set(name);
    return 1;
  } catch (const edgekit::Error &) {
    return 0;
  }
}

EK_API ThreadPool *ekt_float_pool_open(int threads) { return new (std::nothrow) ThreadPool(threads); }

EK_API void ekt_float_pool_close(ThreadPool *pool) { delete pool; }

EK_API void ekt_rms_norm(ThreadPool *pool, const Strided *x, const float *weight, float eps, const Strided *y) {
  edgekit::rms_norm(*pool, *x, weight, eps, *y);
}

EK_API void ekt_rope(ThreadPool *pool, const Strided *x, const float *cos, const float *sin, std::int64_t half,
                     const Strided *y) {
  edgekit::rope(*pool, *x, cos, sin, half, *y);
}

EK_API void ekt_gated_act(ThreadPool *pool, const float *gate, std::int64_t gate_stride, const float *up,
                          std::int64_t up_stride, std::int64_t rows, std::int64_t columns, int gelu, float *y,
                          std::int64_t y_stride) {
  edgekit::gated_act(*pool, gate, gate_stride, up, up_stride, rows, columns,
                     gelu != 0 ? edgekit::Activation::gelu_tanh : edgekit::Activation::silu, y, y_stride);
}

EK_API void ekt_softmax(ThreadPool *pool, const float *x, std::int64_t rows, std::int64_t columns, float *y) {
  edgekit::softmax(*pool, x, rows, columns, y);
}

EK_API void ekt_topk(ThreadPool *pool, const float *x, std::int64_t rows, std::int64_t columns, std::int64_t k,
                     float *values, std::int64_t *indices) {
  edgekit::topk(*pool, x, rows, columns, k, values, indices);
}

EK_API void ekt_route(ThreadPool *pool, const float *logits, const float *bias, const float *factors, std::int64_t rows,
                      std::int64_t experts, std::int64_t k, int sigmoid, int normalize, float scale, std::int64_t groups,
                      std::int64_t kept_groups, std::int64_t capacity, std::int64_t block, std::int64_t *indices,
                      float *weights) {
  const edgekit::RoutingRule rule{experts, k, sigmoid != 0, normalize != 0, scale, groups, kept_groups, capacity, block};
  std::vector<float> wanted(edgekit::routing_bytes(rule, rows) / sizeof(float));
  edgekit::route(*pool, rule, logits, bias, factors, rows, wanted.data(), indices, weights);
}

EK_API void ekt_add(ThreadPool *pool, const float *a, const float *b, std::int64_t count, float *y) {
  edgekit::add(*pool, a, b, count, y);
}

EK_API void ekt_multiply(ThreadPool *pool, const float *a, const float *b, std::int64_t count, float *y) {
  edgekit::multiply(*pool, a, b, count, y);
}

EK_API void ekt_scale(ThreadPool *pool, const float *x, float factor, std::int64_t count, float *y) {
  edgekit::scale(*pool, x, factor, count, y);
}

EK_API void ekt_widen(const std::uint16_t *x, std::int64_t count, float *y) { edgekit::widen(x, count, y); }

EK_API void ekt_exp_array(const float *x, std::int64_t count, float *y) { edgekit::exp_array(x, count, y); }

EK_API std::uint64_t ekt_attention_scratch_bytes(int threads, std::int64_t head_dim) {
  return edgekit::attention_scratch_bytes(threads, head_dim);
}

EK_API void ekt_attention(ThreadPool *pool, const Strided *q, const Strided *k, const Strided *v,
                          const Strided *prefix_k, const Strided *prefix_v, const float *mask, float scale,
                          const Strided *y, void *scratch) {
  edgekit::attention(*pool, *q, {{*prefix_k, *prefix_v}, {*k, *v}}, mask, scale, *y, scratch);
}

}  // extern "C"

// On one thread; returns the number of floating point operations, 0 for an instruction set without such a function.
// `out` keeps the compiler from leaving the work out.
extern "C" EK_API double ekt_multiply_adds(const char *instruction_set, std::int64_t rounds, float *out) {
  *out = 0.0f;
  for (const edgekit::PeakLoop &loop : edgekit::float_loops()) {
    if (std::string(loop.instruction_set) == instruction_set) return loop.run(rounds, out);
  }
  return 0.0;
}

// The same of the loops of 8-bit integers.
extern "C" EK_API double ekt_int8_products(const char *instruction_set, std::int64_t rounds, float *out) {
  *out = 0.0f;
  for (const edgekit::PeakLoop &loop : edgekit::int8_loops()) {
    if (std::string(loop.instruction_set) == instruction_set) return loop.run(rounds, out);
  }
  return 0.0;
}

// 1 if this process may use it; see cpu.h.
extern "C" EK_API int ekt_can_use(const char *instruction_set) {
  return edgekit::can_use_instruction_set(instruction_set) ? 1 : 0;
}
