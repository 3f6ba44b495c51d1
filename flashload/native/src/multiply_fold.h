// The low and the high half of a 128-bit product, combined: a step of hashes.
#ifndef EDGEKIT_MULTIPLY_FOLD_H
#define EDGEKIT_MULTIPLY_FOLD_H

#include <cstdint>

#if defined(_MSC_VER) && defined(_M_X64)
#include <intrin.h>
#endif

namespace edgekit {

inline std::uint64_t multiply_fold(std::uint64_t a, std::uint64_t b) noexcept {
#if defined(__SIZEOF_INT128__)
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
#elif defined(_MSC_VER) && defined(_M_X64)
  std::uint64_t high;
  const std::uint64_t low = _umul128(a, b, &high);
  return low ^ high;
#else
  constexpr std::uint64_t kMask = 0xFFFFFFFF;
  const std::uint64_t low = (a & kMask) * (b & kMask), cross = (a >> 32) * (b & kMask) + (low >> 32);
  const std::uint64_t other = (a & kMask) * (b >> 32) + (cross & kMask);
  const std::uint64_t high = (a >> 32) * (b >> 32) + (cross >> 32) + (other >> 32);
  return (other << 32 | (low & kMask)) ^ high;
#endif
}

}  // namespace edgekit

#endif  // EDGEKIT_MULTIPLY_FOLD_H
