// The counter-based random numbers of the samplers; runtime/sampling/noise.py is their specification.
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
