// The functions of kernels/float_ops.h and kernels/attention.h, for tests and benchmarks in Python.
#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "edgekit.h"
#include "error.h"
#include "kernels/attention.h"
#include "kernels/float_ops.h"
#include "kernels/routing.h"
#include "thread_pool.h"

#if defined(__x86_64__)
#include "kernels/x86_intrinsics.h"
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

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

// Fused multiply-adds in registers only: the rate that attention cannot exceed. Every function does `rounds` times
// 16 of them, as many chains as hide their latency, and returns how many floating point operations that were.
namespace {

constexpr int kChains = 16;

#if defined(__x86_64__)
__attribute__((target("avx512f"))) double multiply_adds_avx512(std::int64_t rounds, float *out) {
  __m512 x[kChains];
  for (int i = 0; i < kChains; ++i) x[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < kChains; ++i) x[i] = _mm512_fmadd_ps(x[i], a, b);
  }
  for (int i = 1; i < kChains; ++i) x[0] = _mm512_add_ps(x[0], x[i]);
  *out = _mm512_cvtss_f32(x[0]);
  return 2.0 * 16.0 * kChains * static_cast<double>(rounds);
}

__attribute__((target("avx2,fma"))) double multiply_adds_avx2(std::int64_t rounds, float *out) {
  constexpr int kFew = 12;  // leaves registers for the constants
  __m256 x[kFew];
  for (int i = 0; i < kFew; ++i) x[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < kFew; ++i) x[i] = _mm256_fmadd_ps(x[i], a, b);
  }
  for (int i = 1; i < kFew; ++i) x[0] = _mm256_add_ps(x[0], x[i]);
  *out = _mm256_cvtss_f32(x[0]);
  return 2.0 * 8.0 * kFew * static_cast<double>(rounds);
}
#elif defined(__aarch64__)
double multiply_adds_neon(std::int64_t rounds, float *out) {
  float32x4_t x[kChains];
  for (int i = 0; i < kChains; ++i) x[i] = vdupq_n_f32(static_cast<float>(i));
  const float32x4_t a = vdupq_n_f32(0.999f), b = vdupq_n_f32(0.001f);
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < kChains; ++i) x[i] = vfmaq_f32(b, x[i], a);
  }
  for (int i = 1; i < kChains; ++i) x[0] = vaddq_f32(x[0], x[i]);
  *out = vgetq_lane_f32(x[0], 0);
  return 2.0 * 4.0 * kChains * static_cast<double>(rounds);
}
#endif

}  // namespace

// On one thread; returns the number of floating point operations, 0 for an instruction set without such a function.
// `out` keeps the compiler from leaving the work out.
extern "C" EK_API double ekt_multiply_adds(const char *instruction_set, std::int64_t rounds, float *out) {
  const std::string name = instruction_set;
#if defined(__x86_64__)
  if (name == "avx512") return multiply_adds_avx512(rounds, out);
  if (name == "avx2") return multiply_adds_avx2(rounds, out);
#elif defined(__aarch64__)
  if (name == "neon") return multiply_adds_neon(rounds, out);
#endif
  *out = static_cast<float>(rounds);
  return 0.0;
}
