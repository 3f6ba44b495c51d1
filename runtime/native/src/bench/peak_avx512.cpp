#include "kernels/x86_intrinsics.h"

#define EK_VECTOR_REGISTER "v"
#include "bench/peak.h"
#include "bench/peak_loop.h"

namespace edgekit {
namespace {

struct IntLanes {
  using V = __m512i;
};
struct FloatLanes {
  using V = __m512;
};

double int8(std::int64_t rounds, float *kept) {
  const __m512i a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(2);
  __m512i out;
  const double done = run_chains<24, IntLanes>(rounds, 2.0 * 64, _mm512_setzero_si512(),
                                     [&](__m512i sum) { return _mm512_dpbusd_epi32(sum, a, b); }, out);
  *kept = static_cast<float>(_mm512_reduce_add_epi32(out));
  return done;
}

double floats(std::int64_t rounds, float *kept) {
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  __m512 out;
  const double done = run_chains<16, FloatLanes>(rounds, 2.0 * 16, _mm512_set1_ps(1.0f),
                                     [&](__m512 x) { return _mm512_fmadd_ps(x, a, b); }, out);
  *kept = _mm512_cvtss_f32(out);
  return done;
}

}  // namespace

const PeakLoop kInt8PeakAvx512{"vpdpbusd, 512 bits", "avx512", int8};
const PeakLoop kFloatPeakAvx512{"vfmadd, 512 bits", "avx512", floats};

}  // namespace edgekit
