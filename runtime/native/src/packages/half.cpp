#include "packages/half.h"

#include <cstdint>
#include <cstring>

namespace edgekit {
namespace {

constexpr std::uint32_t kSign = 0x80000000u, kInfinity = 0x7f800000u;
constexpr std::uint32_t kSmallestNormal = 113u << 23;  // 2^-14
constexpr std::uint32_t kBeyond = 0x477ff000u;         // 65520, the first that rounds to infinity

std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float float_of(std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::uint16_t narrow(std::uint32_t bits) {
  const std::uint32_t sign = (bits & kSign) >> 16, size = bits & ~kSign;
  std::uint32_t half = 0;
  if (size > kInfinity) {
    half = 0x7e00;  // not a number
  } else if (size >= kBeyond) {
    half = 0x7c00;
  } else if (size < kSmallestNormal) {
    // Adding 0.5 puts the last bit of what is below the normal numbers, 2^-24, at the last bit of a float.
    half = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);
  } else {
    half = (size - (112u << 23) + 0xfff + ((size >> 13) & 1)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

std::uint32_t widen(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16, size = half & 0x7fffu;
  if (size >= 0x7c00) return sign | kInfinity | (size & 0x3ffu) << 13;
  if (size < 0x400) return sign | bits_of(static_cast<float>(size) * 0x1p-24f);
  return sign | ((size << 13) + (112u << 23));
}

}  // namespace

// Forwards, and backwards below: what is written never lies where something is still to be read.
void narrow_in_place(float *values, std::size_t count) {
  auto *bytes = reinterpret_cast<unsigned char *>(values);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
    const std::uint16_t half = narrow(bits);
    std::memcpy(bytes + i * sizeof half, &half, sizeof half);
  }
}

void widen_in_place(float *values, std::size_t count) {
  auto *bytes = reinterpret_cast<unsigned char *>(values);
  for (std::size_t i = count; i-- > 0;) {
    std::uint16_t half = 0;
    std::memcpy(&half, bytes + i * sizeof half, sizeof half);
    const std::uint32_t bits = widen(half);
    std::memcpy(bytes + i * sizeof bits, &bits, sizeof bits);
  }
}

}  // namespace edgekit
