// The steps of the noise, written once for every instruction set: `L` is a lanes struct as vector_math.h has them, with
// integers (`L::Int`) besides. runtime/sampling/noise.py fixes which operations these are; nothing may be fused.
#ifndef EDGEKIT_KERNELS_NOISE_STEPS_H
#define EDGEKIT_KERNELS_NOISE_STEPS_H

#include <cstddef>
#include <cstdint>

#include "kernels/noise_kernels.h"
#include "kernels/vector_math.h"

namespace edgekit {
namespace {

constexpr std::int32_t kSqrtHalfBits = 0x3f3504f3;
constexpr float kNoiseLn2 = 0x1.62e43p-1f;
constexpr float kUlp = 0x1p-25f;

// log(1 + f) = f + f^2 * (c0 + c1 f + ... + c8 f^8)
constexpr float kLogCoefficients[9] = {-0x1.fffff8p-2f, 0x1.55555p-2f,   -0x1.000426p-2f,
                                       0x1.99a3f6p-3f,  -0x1.542766p-3f, 0x1.22715ep-3f,
                                       -0x1.0f3756p-3f, 0x1.0849cp-3f,   -0x1.38339ep-4f};

// Several vectors take every step together, so that a processor always has independent operations at hand: one vector
// alone is a chain of some fifty dependent ones.
template <typename L, int N>
EK_VECTOR_INLINE void split(const typename L::Float (&x)[N], typename L::Int (&k)[N], typename L::Float (&f)[N]) {
  for (int j = 0; j < N; ++j) {
    const auto bits = L::bits(x[j]);
    k[j] = L::shift_right_23(L::sub(bits, L::set_int(kSqrtHalfBits)));
    const auto mantissa = L::from_bits(L::sub(bits, L::shift_left_23(k[j])));
    f[j] = L::sub(mantissa, L::set(1.0f));
  }
}

template <typename L, int N>
EK_VECTOR_INLINE void minus_log(const typename L::Int (&k)[N], const typename L::Float (&f)[N],
                                typename L::Float (&r)[N]) {
  for (int j = 0; j < N; ++j) r[j] = L::set(kLogCoefficients[8]);
  for (int i = 7; i >= 0; --i) {
    for (int j = 0; j < N; ++j) r[j] = L::mul(r[j], f[j]);
    for (int j = 0; j < N; ++j) r[j] = L::add(r[j], L::set(kLogCoefficients[i]));
  }
  for (int j = 0; j < N; ++j) r[j] = L::mul(r[j], f[j]);
  for (int j = 0; j < N; ++j) r[j] = L::mul(r[j], f[j]);
  for (int j = 0; j < N; ++j) r[j] = L::add(r[j], f[j]);
  for (int j = 0; j < N; ++j) {
    r[j] = L::negate(L::add(r[j], L::mul(L::to_float(k[j]), L::set(kNoiseLn2))));
  }
}

// Standard Gumbel values of 32-bit random numbers.
template <typename L, int N>
EK_VECTOR_INLINE void gumbel_vectors(const typename L::Int (&halves)[N], typename L::Float (&out)[N]) {
  typename L::Int k[N];
  typename L::Float x[N], f[N];
  for (int j = 0; j < N; ++j) {
    x[j] = L::mul(L::to_float(L::odd_of_half(halves[j])), L::set(kUlp));
  }
  split<L>(x, k, f);
  for (int j = 0; j < N; ++j) {
    // Exact where float32(odd) would lose the last bit of 1 - u.
    const auto below_one = L::sub(L::odd_of_half(halves[j]), L::set_int(1 << 25));
    f[j] = L::where_zero(k[j], L::mul(L::to_float(below_one), L::set(kUlp)), f[j]);
  }
  minus_log<L>(k, f, x);
  split<L>(x, k, f);
  minus_log<L>(k, f, out);
}

// The upper and lower 64 bits of a * b.
EK_VECTOR_INLINE void wide_product(std::uint64_t a, std::uint64_t b, std::uint64_t &high, std::uint64_t &low) {
#if defined(__SIZEOF_INT128__)
  __extension__ typedef unsigned __int128 Wide;
  const Wide product = static_cast<Wide>(a) * b;
  high = static_cast<std::uint64_t>(product >> 64);
  low = static_cast<std::uint64_t>(product);
#else
  const std::uint64_t mask = 0xffffffffu;
  const std::uint64_t a0 = a & mask, a1 = a >> 32, b0 = b & mask, b1 = b >> 32;
  const std::uint64_t middle = a1 * b0 + ((a0 * b0) >> 32);
  const std::uint64_t other = a0 * b1 + (middle & mask);
  high = a1 * b1 + (middle >> 32) + (other >> 32);
  low = a * b;
#endif
}

// The four words of a block; `counter` is its number + 1. The upper words of the counter are zero, which leaves one
// product of round 0 and one of round 1, the other being the same for all blocks.
EK_VECTOR_INLINE void philox_block(const PhiloxKey &key, std::uint64_t counter, std::uint64_t *words) {
  std::uint64_t high0, low0, high1, low1;
  wide_product(kPhiloxMultiplier0, counter, high0, low0);
  wide_product(kPhiloxMultiplier1, high0 ^ key.k1[0], high1, low1);
  std::uint64_t a = high1 ^ key.k0[1], b = low1, c = low0 ^ key.second_high, d = key.second_low;
  for (int round = 2; round < kPhiloxRounds; ++round) {
    wide_product(kPhiloxMultiplier0, a, high0, low0);
    wide_product(kPhiloxMultiplier1, c, high1, low1);
    a = high1 ^ b ^ key.k0[round];
    b = low1;
    c = high0 ^ d ^ key.k1[round];
    d = low0;
  }
  words[0] = a;
  words[1] = b;
  words[2] = c;
  words[3] = d;
}

// Gumbel values of `count` halves; N vectors at a time.
template <typename L, int N>
EK_VECTOR_INLINE void gumbel_array(const std::uint32_t *halves, std::int64_t count, float *out) {
  constexpr std::int64_t kStep = N * L::kWidth;
  typename L::Int in[N];
  typename L::Float values[N];
  std::int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    for (int j = 0; j < N; ++j) in[j] = L::load_int(halves + i + j * L::kWidth);
    gumbel_vectors<L>(in, values);
    for (int j = 0; j < N; ++j) L::store(out + i + j * L::kWidth, values[j]);
  }
  if (i == count) return;
  std::uint32_t rest[kStep] = {};
  float values_of_rest[kStep];
  for (std::int64_t j = 0; i + j < count; ++j) rest[j] = halves[i + j];
  for (int j = 0; j < N; ++j) in[j] = L::load_int(rest + j * L::kWidth);
  gumbel_vectors<L>(in, values);
  for (int j = 0; j < N; ++j) L::store(values_of_rest + j * L::kWidth, values[j]);
  for (std::int64_t j = 0; i + j < count; ++j) out[i + j] = values_of_rest[j];
}

EK_VECTOR_INLINE void philox_array(const PhiloxKey &key, std::uint64_t first, std::int64_t count,
                                   std::uint64_t *words) {
  for (std::int64_t i = 0; i < count; ++i) philox_block(key, first + static_cast<std::uint64_t>(i) + 1, words + 4 * i);
}

// Gumbel values of all halves of blocks first..first+count, a few blocks at a time.
template <typename L, int N>
EK_VECTOR_INLINE void gumbel_blocks(const PhiloxKey &key, std::uint64_t first, std::int64_t count, float *out) {
  constexpr std::int64_t kBlocks = 16;
  std::uint64_t words[4 * kBlocks];
  std::uint32_t halves[8 * kBlocks];
  for (std::int64_t i = 0; i < count; i += kBlocks) {
    const std::int64_t blocks = count - i < kBlocks ? count - i : kBlocks;
    philox_array(key, first + static_cast<std::uint64_t>(i), blocks, words);
    for (std::int64_t j = 0; j < 4 * blocks; ++j) {
      halves[2 * j] = static_cast<std::uint32_t>(words[j]);
      halves[2 * j + 1] = static_cast<std::uint32_t>(words[j] >> 32);
    }
    gumbel_array<L, N>(halves, 8 * blocks, out + 8 * i);
  }
}

}  // namespace
}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_NOISE_STEPS_H
