// The operations of vector_math.h on 4 floats with the Advanced SIMD of AArch64.
#ifndef EDGEKIT_KERNELS_VECTOR_MATH_NEON_H
#define EDGEKIT_KERNELS_VECTOR_MATH_NEON_H

#include <arm_neon.h>

#include "kernels/vector_math.h"

namespace edgekit {
namespace {

struct NeonLanes {
  using Float = float32x4_t;
  static constexpr int kWidth = 4;

  EK_VECTOR_INLINE float32x4_t load(const float *p) { return vld1q_f32(p); }
  EK_VECTOR_INLINE void store(float *p, float32x4_t x) { vst1q_f32(p, x); }
  // The first `count` elements (0 <= count <= kWidth); the others are 0 and are not touched.
  EK_VECTOR_INLINE float32x4_t load_first(const float *p, int count) {
    float32x4_t x = vdupq_n_f32(0.0f);
    if (count > 0) x = vld1q_lane_f32(p, x, 0);
    if (count > 1) x = vld1q_lane_f32(p + 1, x, 1);
    if (count > 2) x = vld1q_lane_f32(p + 2, x, 2);
    if (count > 3) x = vld1q_lane_f32(p + 3, x, 3);
    return x;
  }
  EK_VECTOR_INLINE void store_first(float *p, float32x4_t x, int count) {
    if (count > 0) vst1q_lane_f32(p, x, 0);
    if (count > 1) vst1q_lane_f32(p + 1, x, 1);
    if (count > 2) vst1q_lane_f32(p + 2, x, 2);
    if (count > 3) vst1q_lane_f32(p + 3, x, 3);
  }
  EK_VECTOR_INLINE float32x4_t set(float x) { return vdupq_n_f32(x); }
  EK_VECTOR_INLINE float32x4_t add(float32x4_t a, float32x4_t b) { return vaddq_f32(a, b); }
  EK_VECTOR_INLINE float32x4_t sub(float32x4_t a, float32x4_t b) { return vsubq_f32(a, b); }
  EK_VECTOR_INLINE float32x4_t mul(float32x4_t a, float32x4_t b) { return vmulq_f32(a, b); }
  EK_VECTOR_INLINE float32x4_t div(float32x4_t a, float32x4_t b) { return vdivq_f32(a, b); }
  // The second operand if one is NaN (FMIN and FMAX would return the NaN whichever it is).
  EK_VECTOR_INLINE float32x4_t min(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
  EK_VECTOR_INLINE float32x4_t max(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  EK_VECTOR_INLINE float32x4_t abs(float32x4_t x) { return vabsq_f32(x); }
  // |x| with the sign of `sign`.
  EK_VECTOR_INLINE float32x4_t copy_sign(float32x4_t x, float32x4_t sign) {
    return vbslq_f32(vdupq_n_u32(0x7fffffffu), x, sign);
  }
  // a <= b ? yes : no; `no` if one is NaN.
  EK_VECTOR_INLINE float32x4_t select_less_equal(float32x4_t a, float32x4_t b, float32x4_t yes, float32x4_t no) {
    return vbslq_f32(vcleq_f32(a, b), yes, no);
  }
  // What is at p, less `minus`, as floats rounded to nearest.
  EK_VECTOR_INLINE float32x4_t convert(const std::int32_t *p, std::int32_t minus) {
    return vcvtq_f32_s32(vsubq_s32(vld1q_s32(p), vdupq_n_s32(minus)));
  }
  // x * 2^n for the n in the low bits of `rounded`; the result must be a normal number.
  EK_VECTOR_INLINE float32x4_t add_exponent(float32x4_t x, float32x4_t rounded) {
    return vreinterpretq_f32_u32(
        vaddq_u32(vreinterpretq_u32_f32(x), vshlq_n_u32(vreinterpretq_u32_f32(rounded), 23)));
  }
};

}  // namespace
}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_VECTOR_MATH_NEON_H
