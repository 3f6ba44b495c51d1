// The part of the noise that every instruction set has a version of.
#ifndef EDGEKIT_KERNELS_NOISE_KERNELS_H
#define EDGEKIT_KERNELS_NOISE_KERNELS_H

#include <cstdint>

namespace edgekit {

// Philox4x64-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011).
constexpr int kPhiloxRounds = 10;
constexpr std::uint64_t kPhiloxMultiplier0 = 0xD2E7470EE14C6C93u;
constexpr std::uint64_t kPhiloxMultiplier1 = 0xCA5A826395121157u;

// The key of every round, and what the second round makes of the first word, which is the same for all blocks:
// its upper half with the key's second word, and its lower half.
struct PhiloxKey {
  std::uint64_t k0[kPhiloxRounds];
  std::uint64_t k1[kPhiloxRounds];
  std::uint64_t second_high;
  std::uint64_t second_low;
};

// What an instruction set does.
struct NoiseKernels {
  const char *name;
  // Blocks first..first+count of the stream, 4 words each.
  void (*philox)(const PhiloxKey &key, std::uint64_t first, std::int64_t count, std::uint64_t *words);
  // Gumbel values of `count` halves, in place or not.
  void (*gumbel)(const std::uint32_t *halves, std::int64_t count, float *out);
  // Gumbel values of all halves of blocks first..first+count, 8 for each.
  void (*gumbel_blocks)(const PhiloxKey &key, std::uint64_t first, std::int64_t count, float *out);
};

extern const NoiseKernels kNoiseScalar;
#if defined(__x86_64__) || defined(_M_X64)
extern const NoiseKernels kNoiseAvx2, kNoiseAvx512;
#elif defined(__aarch64__) || defined(_M_ARM64)
extern const NoiseKernels kNoiseNeon;
#endif

}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_NOISE_KERNELS_H
