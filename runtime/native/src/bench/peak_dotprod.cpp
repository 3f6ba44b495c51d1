#include <arm_neon.h>

#define EK_VECTOR_REGISTER "w"
#include "bench/peak.h"
#include "bench/peak_loop.h"

namespace edgekit {
namespace {

struct IntLanes {
  using V = int32x4_t;
};

double int8(std::int64_t rounds, float *kept) {
  const int8x16_t a = vdupq_n_s8(1), b = vdupq_n_s8(2);
  int32x4_t out;
  const double done = run_chains<24, IntLanes>(rounds, 2.0 * 16, vdupq_n_s32(0),
                                     [&](int32x4_t sum) { return vdotq_s32(sum, a, b); }, out);
  *kept = static_cast<float>(vgetq_lane_s32(out, 0));
  return done;
}

}  // namespace

const PeakLoop kInt8PeakDotprod{"sdot", "dotprod", int8};

}  // namespace edgekit
