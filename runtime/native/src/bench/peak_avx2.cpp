#include "kernels/x86_intrinsics.h"

#define EK_VECTOR_REGISTER "x"
#include "bench/peak.h"
#include "bench/peak_loop.h"

namespace edgekit {
namespace {

struct IntLanes {
  using V = __m256i;
};
struct FloatLanes {
  using V = __m256;
};

// As the kernels do it without an instruction for it: pairs of products, pairs of those, the sum.
double int8(std::int64_t rounds, float *kept) {
  const __m256i b = _mm256_set1_epi8(2), ones = _mm256_set1_epi16(1);
  __m256i out;
  const double done = run_chains<12, IntLanes>(
      rounds, 2.0 * 32, _mm256_setzero_si256(),
      // Of the sum itself: what does not depend on it would be computed once.
      [&](__m256i sum) { return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(sum, b), ones)); }, out);
  *kept = static_cast<float>(_mm256_extract_epi32(out, 0));
  return done;
}

double floats(std::int64_t rounds, float *kept) {
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  __m256 out;
  const double done = run_chains<12, FloatLanes>(rounds, 2.0 * 8, _mm256_set1_ps(1.0f),
                                     [&](__m256 x) { return _mm256_fmadd_ps(x, a, b); }, out);
  *kept = _mm256_cvtss_f32(out);
  return done;
}

}  // namespace

const PeakLoop kInt8PeakAvx2{"vpmaddubsw, vpmaddwd and vpaddd, 256 bits", "avx2", int8};
const PeakLoop kFloatPeakAvx2{"vfmadd, 256 bits", "avx2", floats};

}  // namespace edgekit
