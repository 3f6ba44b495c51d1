// The vocabulary head on 4 numbers.
#if defined(__aarch64__) || defined(_M_ARM64)

#include "kernels/head_rows.h"
#include "kernels/vector_math_neon.h"

namespace edgekit {
namespace {

struct Lanes : NeonLanes {
  EK_VECTOR_INLINE void transpose(float32x4_t (&x)[4]) {
    const float32x4x2_t even = vtrnq_f32(x[0], x[1]), odd = vtrnq_f32(x[2], x[3]);
    x[0] = vcombine_f32(vget_low_f32(even.val[0]), vget_low_f32(odd.val[0]));
    x[1] = vcombine_f32(vget_low_f32(even.val[1]), vget_low_f32(odd.val[1]));
    x[2] = vcombine_f32(vget_high_f32(even.val[0]), vget_high_f32(odd.val[0]));
    x[3] = vcombine_f32(vget_high_f32(even.val[1]), vget_high_f32(odd.val[1]));
  }
};

}  // namespace

const HeadKernels kHeadNeon = {"neon", head_scale<Lanes>, head_largest<Lanes>, head_exponentials<Lanes>,
                               head_drop<Lanes>, head_sample<Lanes>};

}  // namespace edgekit

#endif
