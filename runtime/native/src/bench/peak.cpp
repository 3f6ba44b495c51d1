#include "bench/peak.h"

#include "cpu.h"

#if defined(__aarch64__) || defined(_M_ARM64)
#include <arm_neon.h>

#define EK_VECTOR_REGISTER "w"
#include "bench/peak_loop.h"
#endif

namespace edgekit {
namespace {

#if defined(__aarch64__) || defined(_M_ARM64)
struct FloatLanes {
  using V = float32x4_t;
};

double float_neon(std::int64_t rounds, float *kept) {
  const float32x4_t a = vdupq_n_f32(0.999f), b = vdupq_n_f32(0.001f);
  float32x4_t out;
  const double done = run_chains<24, FloatLanes>(rounds, 2.0 * 4, vdupq_n_f32(1.0f),
                                     [&](float32x4_t x) { return vfmaq_f32(b, x, a); }, out);
  *kept = vgetq_lane_f32(out, 0);
  return done;
}
#endif

// Written for no instruction set: what the compiler makes of it.
template <typename Number>
double plain(std::int64_t rounds, float *kept) {
  constexpr int kChains = 16;
  Number x[kChains], a = static_cast<Number>(*kept), b = static_cast<Number>(1);
  for (int i = 0; i < kChains; ++i) x[i] = static_cast<Number>(i);
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (Number &each : x) each = static_cast<Number>(each * a + b);
  }
  for (int i = 1; i < kChains; ++i) x[0] = static_cast<Number>(x[0] + x[i]);
  *kept = static_cast<float>(x[0]);
  return 2.0 * kChains * static_cast<double>(rounds);
}

std::vector<PeakLoop> usable(std::vector<PeakLoop> loops) {
  std::vector<PeakLoop> out;
  for (const PeakLoop &loop : loops) {
    if (can_use_instruction_set(loop.instruction_set)) out.push_back(loop);
  }
  return out;
}

}  // namespace

std::vector<PeakLoop> int8_loops() {
  return usable({
#if defined(__x86_64__) || defined(_M_X64)
      kInt8PeakAvx512, kInt8PeakAvxVnni, kInt8PeakAvx2,
#elif defined(__aarch64__) || defined(_M_ARM64)
      kInt8PeakI8mm, kInt8PeakDotprod,
#endif
      {"plain", "scalar", plain<std::uint32_t>}});
}

std::vector<PeakLoop> float_loops() {
  return usable({
#if defined(__x86_64__) || defined(_M_X64)
      kFloatPeakAvx512, kFloatPeakAvx2,
#elif defined(__aarch64__) || defined(_M_ARM64)
      {"fmla", "neon", float_neon},
#endif
      {"plain", "scalar", plain<float>}});
}

}  // namespace edgekit
