// exp, tanh, silu and gelu_tanh (vector_exp<L>, ...) on vectors of floats, written once for every instruction set.
//
// `L` ("lanes") is one of the structs of vector_math_scalar.h, vector_math_neon.h, vector_math_avx2.h and
// vector_math_avx512.h: a vector type `L::Float` and elementary operations that IEEE 754 defines exactly. The
// functions below are nothing but those operations in a fixed order, without fused multiply-add, so that all
// instruction sets return the same bits (except for which NaN a NaN is).
#ifndef EDGEKIT_KERNELS_VECTOR_MATH_H
#define EDGEKIT_KERNELS_VECTOR_MATH_H

#include <cstdint>

#if defined(_MSC_VER)
#define EK_VECTOR_INLINE static __forceinline
#else
#define EK_VECTOR_INLINE static inline __attribute__((always_inline))
#endif

namespace edgekit {
// No name of this header may be shared between files that are compiled for different instruction sets: the linker
// would keep one of the copies for all of them.
namespace {

// e^x = 2^n * e^r with n = rint(x / ln 2). Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
constexpr float kRounder = 12582912.0f;
constexpr float kLog2e = 1.44269504f;
// ln 2 in two parts; the first has 9 bits, so that its product with n is exact.
constexpr float kLn2High = 0.693359375f;
constexpr float kLn2Low = -2.12194440e-4f;

// e^r - 1 for |r| <= ln 2 / 2: r + r^2 * (1/2 + ...), coefficients fitted for the least largest error (3e-9).
template <typename L>
EK_VECTOR_INLINE typename L::Float expm1_reduced(typename L::Float r) {
  typename L::Float p = L::set(0x1.6d7156p-10f);
  p = L::add(L::mul(p, r), L::set(0x1.123ac6p-7f));
  p = L::add(L::mul(p, r), L::set(0x1.5554c8p-5f));
  p = L::add(L::mul(p, r), L::set(0x1.555490p-3f));
  p = L::add(L::mul(p, r), L::set(0.5f));
  return L::add(L::mul(L::mul(r, r), p), r);
}

// r of e^x = 2^n * e^r; `rounded` becomes n + kRounder.
template <typename L>
EK_VECTOR_INLINE typename L::Float reduce_exponent(typename L::Float x, typename L::Float &rounded) {
  rounded = L::add(L::mul(x, L::set(kLog2e)), L::set(kRounder));
  const typename L::Float n = L::sub(rounded, L::set(kRounder));
  return L::sub(L::sub(x, L::mul(n, L::set(kLn2High))), L::mul(n, L::set(kLn2Low)));
}

// e^x with an error of at most 1 unit in the last place; 0 below -87.3, e^88.7 from 88.7 on, NaN for NaN.
template <typename L>
EK_VECTOR_INLINE typename L::Float vector_exp(typename L::Float x) {
  const typename L::Float low = L::set(-87.3f);
  // The operand order lets a NaN through.
  const typename L::Float clamped = L::min(L::set(88.7f), L::max(low, x));
  typename L::Float rounded;
  const typename L::Float r = reduce_exponent<L>(clamped, rounded);
  const typename L::Float y = L::add(expm1_reduced<L>(r), L::set(1.0f));
  // n added to the exponent field: n = 128 is in range there, as y < 1 then. The difference is 0, or NaN for NaN.
  return L::select_less_equal(low, x, L::add_exponent(y, rounded), L::sub(clamped, clamped));
}

// tanh(x) with an error of at most 3 units in the last place, NaN for NaN: m / (m + 2) with m = e^(2|x|) - 1.
template <typename L>
EK_VECTOR_INLINE typename L::Float vector_tanh(typename L::Float x) {
  const typename L::Float magnitude = L::min(L::set(10.0f), L::abs(x));  // 1 - tanh(10) < 2^-25
  const typename L::Float twice = L::add(magnitude, magnitude);
  typename L::Float rounded;
  const typename L::Float r = reduce_exponent<L>(twice, rounded);
  const typename L::Float power = L::add_exponent(L::set(1.0f), rounded);
  const typename L::Float m = L::add(L::mul(power, expm1_reduced<L>(r)), L::sub(power, L::set(1.0f)));
  return L::copy_sign(L::div(m, L::add(m, L::set(2.0f))), x);
}

// x / (1 + e^-x) with an error of at most 3 units in the last place (x * 3e-39 below -88.7).
template <typename L>
EK_VECTOR_INLINE typename L::Float vector_silu(typename L::Float x) {
  const typename L::Float e = vector_exp<L>(L::sub(L::set(0.0f), x));
  return L::div(x, L::add(L::set(1.0f), e));
}

// x / 2 * (1 + tanh(u)) = x / (1 + e^-2u) with u = sqrt(2 / pi) * (x + 0.044715 x^3).
// Error at most 3 units in the last place from -1 on; 2e-7 under that, which is more than 3 units because e^-2u
// amplifies the rounding of u (x / 2 * (1 + tanh(u)) in float32 cancels, which is worse); x * 3e-39 far below zero.
template <typename L>
EK_VECTOR_INLINE typename L::Float vector_gelu_tanh(typename L::Float x) {
  const typename L::Float square = L::mul(x, x);
  const typename L::Float slope = L::add(L::mul(square, L::set(-0.0713548163f)), L::set(-1.59576912f));
  const typename L::Float e = vector_exp<L>(L::mul(x, slope));
  return L::div(x, L::add(L::set(1.0f), e));
}

}  // namespace
}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_VECTOR_MATH_H
