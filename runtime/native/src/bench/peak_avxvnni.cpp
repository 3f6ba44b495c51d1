#include "kernels/x86_intrinsics.h"

#define EK_VECTOR_REGISTER "x"
#include "bench/peak.h"
#include "bench/peak_loop.h"

namespace edgekit {
namespace {

struct IntLanes {
  using V = __m256i;
};

double int8(std::int64_t rounds, float *kept) {
  const __m256i a = _mm256_set1_epi8(1), b = _mm256_set1_epi8(2);
  __m256i out;
  const double done = run_chains<12, IntLanes>(rounds, 2.0 * 32, _mm256_setzero_si256(),
                                     [&](__m256i sum) { return _mm256_dpbusd_avx_epi32(sum, a, b); }, out);
  *kept = static_cast<float>(_mm256_extract_epi32(out, 0));
  return done;
}

}  // namespace

const PeakLoop kInt8PeakAvxVnni{"vpdpbusd, 256 bits", "avxvnni", int8};

}  // namespace edgekit
