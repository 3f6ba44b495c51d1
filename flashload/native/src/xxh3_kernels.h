// The loop of XXH3 over long inputs, once per instruction set; xxh3.cpp chooses and does the rest.
#ifndef EDGEKIT_XXH3_KERNELS_H
#define EDGEKIT_XXH3_KERNELS_H

#include <cstddef>
#include <cstdint>

namespace edgekit {

constexpr std::size_t kXxh3SecretBytes = 192;
constexpr std::size_t kXxh3StripeBytes = 64;
constexpr std::size_t kXxh3BlockStripes = (kXxh3SecretBytes - kXxh3StripeBytes) / 8;
constexpr std::size_t kXxh3BlockBytes = kXxh3BlockStripes * kXxh3StripeBytes;
constexpr std::size_t kXxh3LastStripeSecret = kXxh3SecretBytes - kXxh3StripeBytes - 7;

// Takes `blocks` whole blocks into the 8 lanes, each with its scramble. Where `last` is not null, `left` bytes follow
// them, at least 1 and at most a block: their whole stripes but for the last byte, then the stripe at `last`, which is
// the last 64 bytes of the input (steps 2 and 3 of the specification).
using Xxh3Loop = void (*)(std::uint64_t *lanes, const std::uint8_t *data, std::size_t blocks, std::size_t left,
                          const std::uint8_t *last, const std::uint8_t *secret);

void xxh3_loop_avx2(std::uint64_t *lanes, const std::uint8_t *data, std::size_t blocks, std::size_t left,
                    const std::uint8_t *last, const std::uint8_t *secret);
void xxh3_loop_avx512(std::uint64_t *lanes, const std::uint8_t *data, std::size_t blocks, std::size_t left,
                      const std::uint8_t *last, const std::uint8_t *secret);

// The loop named "portable", "neon", "avx2" or "avx512"; null where this machine cannot run it. "" is the fastest.
Xxh3Loop xxh3_find_loop(const char *name);
std::uint64_t xxh3_64_with(Xxh3Loop loop, const void *data, std::size_t size);

}  // namespace edgekit

#endif  // EDGEKIT_XXH3_KERNELS_H
