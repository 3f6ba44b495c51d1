// The logarithms on 4 numbers; the products of Philox are those of the integer unit.
#if defined(__aarch64__) || defined(_M_ARM64)

#include "kernels/noise_steps.h"
#include "kernels/vector_math_neon.h"

namespace edgekit {
namespace {

struct Lanes : NeonLanes {
  using NeonLanes::sub;
  using Int = int32x4_t;

  EK_VECTOR_INLINE Int load_int(const std::uint32_t *p) { return vreinterpretq_s32_u32(vld1q_u32(p)); }
  EK_VECTOR_INLINE Int set_int(std::int32_t x) { return vdupq_n_s32(x); }
  EK_VECTOR_INLINE Int sub(Int a, Int b) { return vsubq_s32(a, b); }
  EK_VECTOR_INLINE Int shift_right_23(Int x) { return vshrq_n_s32(x, 23); }
  EK_VECTOR_INLINE Int shift_left_23(Int x) { return vshlq_n_s32(x, 23); }
  EK_VECTOR_INLINE Int odd_of_half(Int x) {
    return vreinterpretq_s32_u32(vorrq_u32(vshrq_n_u32(vreinterpretq_u32_s32(x), 7), vdupq_n_u32(1)));
  }
  EK_VECTOR_INLINE Int bits(Float x) { return vreinterpretq_s32_f32(x); }
  EK_VECTOR_INLINE Float from_bits(Int x) { return vreinterpretq_f32_s32(x); }
  EK_VECTOR_INLINE Float to_float(Int x) { return vcvtq_f32_s32(x); }
  EK_VECTOR_INLINE Float negate(Float x) { return vnegq_f32(x); }
  EK_VECTOR_INLINE Float where_zero(Int k, Float yes, Float no) {
    return vbslq_f32(vceqq_s32(k, vdupq_n_s32(0)), yes, no);
  }
};

constexpr int kVectors = 8;

void philox(const PhiloxKey &key, std::uint64_t first, std::int64_t count, std::uint64_t *words) {
  philox_array(key, first, count, words);
}

void gumbel(const std::uint32_t *halves, std::int64_t count, float *out) {
  gumbel_array<Lanes, kVectors>(halves, count, out);
}

void gumbel_of_blocks(const PhiloxKey &key, std::uint64_t first, std::int64_t count, float *out) {
  gumbel_blocks<Lanes, kVectors>(key, first, count, out);
}

}  // namespace

const NoiseKernels kNoiseNeon = {"neon", philox, gumbel, gumbel_of_blocks};

}  // namespace edgekit

#endif
