#include "kernels/noise.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "cpu.h"
#include "error.h"
#include "kernels/noise_kernels.h"

namespace edgekit {
namespace {

constexpr int kHalvesPerBlock = 8;
constexpr int kWordsPerBlock = 4;

const NoiseKernels *const kSets[] = {
#if defined(__x86_64__) || defined(_M_X64)
    &kNoiseAvx512, &kNoiseAvx2,
#elif defined(__aarch64__) || defined(_M_ARM64)
    &kNoiseNeon,
#endif
    &kNoiseScalar,
};

const NoiseKernels *find(const char *name) {
  for (const NoiseKernels *set : kSets) {
    if (can_use_instruction_set(set->name) && (name == nullptr || std::strcmp(name, set->name) == 0)) return set;
  }
  fail(EK_INVALID_ARGUMENT, "this process cannot use the instruction set \"", name, "\"");
}

std::atomic<const NoiseKernels *> &chosen() {
  static std::atomic<const NoiseKernels *> set{find(nullptr)};
  return set;
}

const NoiseKernels &kernels() { return *chosen().load(std::memory_order_relaxed); }

void wide_product(std::uint64_t a, std::uint64_t b, std::uint64_t &high, std::uint64_t &low) {
  const std::uint64_t mask = 0xffffffffu;
  const std::uint64_t a0 = a & mask, a1 = a >> 32, b0 = b & mask, b1 = b >> 32;
  const std::uint64_t middle = a1 * b0 + ((a0 * b0) >> 32);
  const std::uint64_t other = a0 * b1 + (middle & mask);
  high = a1 * b1 + (middle >> 32) + (other >> 32);
  low = a * b;
}

PhiloxKey make_key(std::uint64_t seed, std::uint64_t draw) {
  PhiloxKey key;
  for (std::uint64_t round = 0; round < kPhiloxRounds; ++round) {
    key.k0[round] = seed + round * 0x9E3779B97F4A7C15u;
    key.k1[round] = draw + round * 0xBB67AE8584CAA73Bu;
  }
  std::uint64_t high;
  wide_product(kPhiloxMultiplier0, key.k0[0], high, key.second_low);
  key.second_high = high ^ key.k1[1];
  return key;
}

void store_halves(const std::uint64_t *words, std::int64_t first, std::int64_t count, std::uint32_t *out) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t half = first + i;
    out[i] = static_cast<std::uint32_t>(words[half / 2] >> (half % 2 * 32));
  }
}

// Cuts the halves first..first+count where blocks begin: part(block, blocks, skipped halves of the first block,
// wanted halves, where they begin).
template <typename Part>
void for_blocks(std::uint64_t first, std::int64_t count, std::int64_t blocks_at_once, const Part &part) {
  for (std::int64_t done = 0; done < count;) {
    const std::uint64_t at = first + static_cast<std::uint64_t>(done);
    const std::int64_t skip = static_cast<std::int64_t>(at % kHalvesPerBlock);
    const std::int64_t here = std::min(count - done, blocks_at_once * kHalvesPerBlock - skip);
    part(at / kHalvesPerBlock, (skip + here + kHalvesPerBlock - 1) / kHalvesPerBlock, skip, here, done);
    done += here;
  }
}

}  // namespace

void noise_use_instruction_set(const char *name) { chosen().store(find(name), std::memory_order_relaxed); }

void philox_halves(std::uint64_t seed, std::uint64_t draw, std::uint64_t first, std::int64_t count,
                   std::uint32_t *out) {
  constexpr std::int64_t kAtOnce = 64;
  const PhiloxKey key = make_key(seed, draw);
  std::uint64_t words[kAtOnce * kWordsPerBlock];
  for_blocks(first, count, kAtOnce,
             [&](std::uint64_t block, std::int64_t blocks, std::int64_t skip, std::int64_t wanted, std::int64_t done) {
               kernels().philox(key, block, blocks, words);
               store_halves(words, skip, wanted, out + done);
             });
}

void gumbel_of_halves(const std::uint32_t *halves, std::int64_t count, float *out) {
  kernels().gumbel(halves, count, out);
}

void gumbel_noise(std::uint64_t seed, std::uint64_t draw, std::uint64_t first, std::int64_t count, float *out) {
  const PhiloxKey key = make_key(seed, draw);
  const auto edge = [&](std::uint64_t at, std::int64_t wanted, float *to) {  // part of one block
    float values[kHalvesPerBlock];
    kernels().gumbel_blocks(key, at / kHalvesPerBlock, 1, values);
    std::copy_n(values + at % kHalvesPerBlock, wanted, to);
  };
  const std::int64_t before = std::min(count, static_cast<std::int64_t>(-first % kHalvesPerBlock));
  if (before > 0) edge(first, before, out);
  const std::int64_t blocks = (count - before) / kHalvesPerBlock;
  const std::uint64_t aligned = first + static_cast<std::uint64_t>(before);
  if (blocks > 0) kernels().gumbel_blocks(key, aligned / kHalvesPerBlock, blocks, out + before);
  const std::int64_t done = before + blocks * kHalvesPerBlock;
  if (done < count) edge(first + static_cast<std::uint64_t>(done), count - done, out + done);
}

void philox_integers(std::uint64_t seed, std::uint64_t draw, std::uint64_t high, std::int64_t count,
                     std::int64_t *out) {
  if (high < 1 || high > std::uint64_t{1} << 32) {
    fail(EK_INVALID_ARGUMENT, "integers below ", high, ": the bound must be 1..2^32");
  }
  constexpr std::int64_t kAtOnce = 64;
  const PhiloxKey key = make_key(seed, draw);
  std::uint64_t words[kAtOnce * kWordsPerBlock];
  for_blocks(0, count, kAtOnce,
             [&](std::uint64_t block, std::int64_t blocks, std::int64_t, std::int64_t wanted, std::int64_t done) {
               kernels().philox(key, block, blocks, words);
               for (std::int64_t i = 0; i < wanted; ++i) {
                 const std::uint64_t half = (words[i / 2] >> (i % 2 * 32)) & 0xffffffffu;
                 // high = 2^32 times a half still fits 64 bits.
                 out[done + i] = static_cast<std::int64_t>((half * high) >> 32);
               }
             });
}

double uniform_of_word(std::uint64_t word) {
  // The sum rounds to even from 1/2 on, and to 2^53 for the last word.
  return std::min((static_cast<double>(word >> 11) + 0.5) * 0x1p-53, 1 - 0x1p-53);
}

void philox_uniform(std::uint64_t seed, std::uint64_t draw, std::int64_t count, double *out) {
  constexpr std::int64_t kAtOnce = 64;
  const PhiloxKey key = make_key(seed, draw);
  std::uint64_t words[kAtOnce * kWordsPerBlock];
  for (std::int64_t i = 0; i < count; i += kAtOnce * kWordsPerBlock) {
    const std::int64_t here = std::min(count - i, kAtOnce * kWordsPerBlock);
    const std::int64_t blocks = (here + kWordsPerBlock - 1) / kWordsPerBlock;
    kernels().philox(key, static_cast<std::uint64_t>(i / kWordsPerBlock), blocks, words);
    for (std::int64_t j = 0; j < here; ++j) out[i + j] = uniform_of_word(words[j]);
  }
}

}  // namespace edgekit
