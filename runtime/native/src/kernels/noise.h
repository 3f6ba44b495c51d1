// The counter-based random numbers of the samplers.
//
// Every request for numbers is one draw. Draws are numbered 0, 1, 2, ... in the order of the requests, and all values of a
// draw are a pure function of (seed, draw, index), so a vocabulary tile can be produced on its own, in any order and on
// any machine.
//
// Exactly:
//
// * Stream. Philox4x64-10 (Salmon et al., SC 2011) with the 128-bit key (low word seed, high word draw). Block
//   b = 0, 1, ... is the permutation of the 256-bit counter b + 1 (numpy's convention: the counter is increased
//   before use) and gives the 64-bit words 4b .. 4b+3. Half h = 0, 1, ... is the low (h even) or high (h odd)
//   32 bits of word h // 2.
// * uniform(n)[i] = min(((word i >> 11) + 0.5) * 2^-53, 1 - 2^-53) in float64, never 0 or 1: from 1/2 on the sum
//   rounds to even, which would give 1 for the last word.
// * integers(high, n)[i] = (half i * high) >> 32 in 64-bit arithmetic, for 1 <= high <= 2^32.
// * gumbel(positions, V) at (position, token) uses half i = token * positions + position. With m = half i >> 8
//   it is -log(-log u) for u = (m + 0.5) * 2^-24, evaluated in float32 by the steps below. Each step is one IEEE
//   operation rounded to nearest even; nothing may be fused (-ffp-contract=off), so that every platform
//   gets the same bits.
//
//       n = 2*m + 1                         odd, 1 .. 2^25 - 1, u = n * 2^-25
//       x = float32(n) * 2^-25
//       (k, f) = split(x)
//       if k == 0: f = -(float32(2^25 - n) * 2^-25)      exact u - 1, where float32(n) would lose the last bit
//       e = -log_of(k, f)                   2^-25 .. 17.4
//       gumbel = -log_of(split(e))
//
//       split(x): b = bits of x as int32; k = (b - 0x3f3504f3) >> 23 (arithmetic);
//                 f = float32 with the bits b - (k << 23), minus 1      sqrt(1/2) - 1 <= f < sqrt(2) - 1
//       log_of(k, f): r = c8; r = r*f + c7; ...; r = r*f + c0; r = (r*f)*f; r = r + f; r + float32(k)*ln2
//
//   c0..c8 and ln2 are the float32 values in noise_steps.h: the polynomial (log(1 + f) - f) / f^2 of degree 8 fitted for
//   the least relative error of log(1 + f), 5.4e-9. `-log_of` only flips the sign bit.
#ifndef EDGEKIT_KERNELS_NOISE_H
#define EDGEKIT_KERNELS_NOISE_H

#include <cstdint>

namespace edgekit {

// 32-bit halves first..first+count of the stream of (seed, draw).
void philox_halves(std::uint64_t seed, std::uint64_t draw, std::uint64_t first, std::int64_t count, std::uint32_t *out);

// Standard Gumbel noise of 32-bit random numbers, in place or not.
void gumbel_of_halves(const std::uint32_t *halves, std::int64_t count, float *out);

// Both at once: the Gumbel values of halves first..first+count of the stream of (seed, draw).
void gumbel_noise(std::uint64_t seed, std::uint64_t draw, std::uint64_t first, std::int64_t count, float *out);

// count integers uniform over 0..high-1, 1 <= high <= 2^32.
void philox_integers(std::uint64_t seed, std::uint64_t draw, std::uint64_t high, std::int64_t count, std::int64_t *out);

// The number of the open interval (0, 1) that a word of the stream stands for.
double uniform_of_word(std::uint64_t word);

// count numbers uniform over the open interval (0, 1).
void philox_uniform(std::uint64_t seed, std::uint64_t draw, std::int64_t count, double *out);

// Forces "avx512", "avx2", "neon" or "scalar", for tests; null chooses the best again. Throws Error
// (EK_INVALID_ARGUMENT) for one that this process may not use.
void noise_use_instruction_set(const char *name);

}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_NOISE_H
