// XXH3-64 from its specification (version 0.2.0). Words are little endian whatever the machine is.
#include "xxh3.h"

#include <cstring>

#include "cpu.h"
#include "multiply_fold.h"
#include "xxh3_kernels.h"

#if defined(__aarch64__) || defined(_M_ARM64)
#include <arm_neon.h>
#define EK_XXH3_NEON 1
#endif
#if defined(__x86_64__) || defined(_M_X64)
#define EK_XXH3_X86 1
#endif

namespace edgekit {
namespace {

constexpr std::uint64_t kPrime32A = 0x9E3779B1, kPrime32B = 0x85EBCA77, kPrime32C = 0xC2B2AE3D;
constexpr std::uint64_t kPrime64A = 0x9E3779B185EBCA87, kPrime64B = 0xC2B2AE3D27D4EB4F;
constexpr std::uint64_t kPrime64C = 0x165667B19E3779F9, kPrime64D = 0x85EBCA77C2B2AE63;
constexpr std::uint64_t kPrime64E = 0x27D4EB2F165667C5;
constexpr std::uint64_t kMixA = 0x165667919E3779F9, kMixB = 0x9FB21C651E98DF25;
constexpr std::size_t kMergeSecret = 11;

// The specification's default secret.
alignas(64) constexpr std::uint8_t kSecret[kXxh3SecretBytes] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

// Compilers turn these into one load (and one swap on a big-endian machine).
std::uint64_t read32(const std::uint8_t *from) {
  return std::uint64_t{from[0]} | std::uint64_t{from[1]} << 8 | std::uint64_t{from[2]} << 16 |
         std::uint64_t{from[3]} << 24;
}

std::uint64_t read64(const std::uint8_t *from) { return read32(from) | read32(from + 4) << 32; }

std::uint64_t rotate(std::uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

std::uint64_t swap_bytes(std::uint64_t value) {
  value = (value & 0x00FF00FF00FF00FF) << 8 | (value >> 8 & 0x00FF00FF00FF00FF);
  value = (value & 0x0000FFFF0000FFFF) << 16 | (value >> 16 & 0x0000FFFF0000FFFF);
  return value << 32 | value >> 32;
}

std::uint64_t avalanche(std::uint64_t value) {
  value = (value ^ value >> 37) * kMixA;
  return value ^ value >> 32;
}

// The last step of XXH64.
std::uint64_t avalanche_short(std::uint64_t value) {
  value = (value ^ value >> 33) * kPrime64B;
  value = (value ^ value >> 29) * kPrime64C;
  return value ^ value >> 32;
}

std::uint64_t mix(const std::uint8_t *data, std::size_t secret) {
  return multiply_fold(read64(data) ^ read64(kSecret + secret), read64(data + 8) ^ read64(kSecret + secret + 8));
}

std::uint64_t hash_up_to_16(const std::uint8_t *data, std::size_t size) {
  if (size > 8) {
    const std::uint64_t low = read64(kSecret + 24) ^ read64(kSecret + 32) ^ read64(data);
    const std::uint64_t high = read64(kSecret + 40) ^ read64(kSecret + 48) ^ read64(data + size - 8);
    return avalanche(size + swap_bytes(low) + high + multiply_fold(low, high));
  }
  if (size > 3) {
    const std::uint64_t both = read32(data + size - 4) | read32(data) << 32;
    std::uint64_t value = read64(kSecret + 8) ^ read64(kSecret + 16) ^ both;
    value ^= rotate(value, 49) ^ rotate(value, 24);
    value *= kMixB;
    value ^= (value >> 35) + size;
    value *= kMixB;
    return value ^ value >> 28;
  }
  if (size > 0) {
    const std::uint64_t combined = std::uint64_t{data[size - 1]} | std::uint64_t{size} << 8 |
                                   std::uint64_t{data[0]} << 16 | std::uint64_t{data[size / 2]} << 24;
    return avalanche_short(read32(kSecret) ^ read32(kSecret + 4) ^ combined);
  }
  return avalanche_short(read64(kSecret + 56) ^ read64(kSecret + 64));
}

// Pairs of 16 bytes, from both ends towards the middle.
std::uint64_t hash_up_to_128(const std::uint8_t *data, std::size_t size) {
  std::uint64_t sum = size * kPrime64A;
  for (std::size_t pair = (size - 1) / 32 + 1; pair-- > 0;) {
    sum += mix(data + 16 * pair, 32 * pair);
    sum += mix(data + size - 16 * pair - 16, 32 * pair + 16);
  }
  return avalanche(sum);
}

std::uint64_t hash_up_to_240(const std::uint8_t *data, std::size_t size) {
  std::uint64_t sum = size * kPrime64A;
  for (std::size_t i = 0; i < 8; ++i) sum += mix(data + 16 * i, 16 * i);
  sum = avalanche(sum);
  for (std::size_t i = 8; i < size / 16; ++i) sum += mix(data + 16 * i, 16 * (i - 8) + 3);
  return avalanche(sum + mix(data + size - 16, 119));
}

void start(std::uint64_t (&lanes)[8]) {
  const std::uint64_t first[8] = {kPrime32C, kPrime64A, kPrime64B, kPrime64C,
                                  kPrime64D, kPrime32B, kPrime64E, kPrime32A};
  std::memcpy(lanes, first, sizeof lanes);
}

std::uint64_t finish(const std::uint64_t (&lanes)[8], std::uint64_t size) {
  std::uint64_t sum = size * kPrime64A;
  for (std::size_t i = 0; i < 8; i += 2) {
    const std::uint8_t *secret = kSecret + kMergeSecret + 8 * i;
    sum += multiply_fold(lanes[i] ^ read64(secret), lanes[i + 1] ^ read64(secret + 8));
  }
  return avalanche(sum);
}

std::uint64_t hash_long(Xxh3Loop loop, const std::uint8_t *data, std::size_t size) {
  std::uint64_t lanes[8];
  start(lanes);
  const std::size_t blocks = (size - 1) / kXxh3BlockBytes;  // the last byte is never part of a block
  loop(lanes, data, blocks, size - blocks * kXxh3BlockBytes, data + size - kXxh3StripeBytes, kSecret);
  return finish(lanes, size);
}

// Blocks, whole stripes and the last stripe, for vectors that offer `add_stripe` and `scramble`.
template <typename Lanes>
void run_loop(std::uint64_t *stored, const std::uint8_t *data, std::size_t blocks, std::size_t left,
              const std::uint8_t *last, const std::uint8_t *secret) {
  Lanes lanes(stored);
  for (; blocks > 0; --blocks, data += kXxh3BlockBytes) {
    for (std::size_t i = 0; i < kXxh3BlockStripes; ++i) lanes.add_stripe(data + i * kXxh3StripeBytes, secret + i * 8);
    lanes.scramble(secret + kXxh3SecretBytes - kXxh3StripeBytes);
  }
  if (last != nullptr) {
    for (std::size_t i = 0; i < (left - 1) / kXxh3StripeBytes; ++i) {
      lanes.add_stripe(data + i * kXxh3StripeBytes, secret + i * 8);
    }
    lanes.add_stripe(last, secret + kXxh3LastStripeSecret);
  }
  lanes.store(stored);
}

struct PortableLanes {
  std::uint64_t lane[8];

  explicit PortableLanes(const std::uint64_t *from) { std::memcpy(lane, from, sizeof lane); }
  void store(std::uint64_t *to) const { std::memcpy(to, lane, sizeof lane); }

  void add_stripe(const std::uint8_t *data, const std::uint8_t *secret) {
    for (std::size_t i = 0; i < 8; ++i) {
      const std::uint64_t value = read64(data + 8 * i), keyed = value ^ read64(secret + 8 * i);
      lane[i ^ 1] += value;
      lane[i] += (keyed & 0xFFFFFFFF) * (keyed >> 32);
    }
  }

  void scramble(const std::uint8_t *secret) {
    for (std::size_t i = 0; i < 8; ++i) lane[i] = (lane[i] ^ lane[i] >> 47 ^ read64(secret + 8 * i)) * kPrime32A;
  }
};

#if defined(EK_XXH3_NEON)
// Part of every AArch64 processor, so it needs no file and no choice of its own.
struct NeonLanes {
  uint64x2_t lane[4];

  explicit NeonLanes(const std::uint64_t *from) {
    for (int i = 0; i < 4; ++i) lane[i] = vld1q_u64(from + 2 * i);
  }
  void store(std::uint64_t *to) const {
    for (int i = 0; i < 4; ++i) vst1q_u64(to + 2 * i, lane[i]);
  }

  void add_stripe(const std::uint8_t *data, const std::uint8_t *secret) {
    for (int i = 0; i < 4; i += 2) {
      const uint64x2_t first = vreinterpretq_u64_u8(vld1q_u8(data + 16 * i));
      const uint64x2_t second = vreinterpretq_u64_u8(vld1q_u8(data + 16 * i + 16));
      const uint32x4_t first_keyed =
          vreinterpretq_u32_u64(veorq_u64(first, vreinterpretq_u64_u8(vld1q_u8(secret + 16 * i))));
      const uint32x4_t second_keyed =
          vreinterpretq_u32_u64(veorq_u64(second, vreinterpretq_u64_u8(vld1q_u8(secret + 16 * i + 16))));
      // Both pairs' low and high halves side by side feed two widening products.
      const uint32x4_t low = vuzp1q_u32(first_keyed, second_keyed), high = vuzp2q_u32(first_keyed, second_keyed);
      lane[i] = vmlal_u32(vaddq_u64(lane[i], vextq_u64(first, first, 1)), vget_low_u32(low), vget_low_u32(high));
      lane[i + 1] = vmlal_high_u32(vaddq_u64(lane[i + 1], vextq_u64(second, second, 1)), low, high);
    }
  }

  void scramble(const std::uint8_t *secret) {
    const uint32x2_t prime = vdup_n_u32(static_cast<std::uint32_t>(kPrime32A));
    for (int i = 0; i < 4; ++i) {
      const uint64x2_t shifted = veorq_u64(lane[i], vshrq_n_u64(lane[i], 47));
      const uint64x2_t keyed = veorq_u64(shifted, vreinterpretq_u64_u8(vld1q_u8(secret + 16 * i)));
      const uint64x2_t high = vshlq_n_u64(vmull_u32(vshrn_n_u64(keyed, 32), prime), 32);
      lane[i] = vmlal_u32(high, vmovn_u64(keyed), prime);
    }
  }
};
#endif

}  // namespace

Xxh3Loop xxh3_find_loop(const char *name) {
  const auto wanted = [name](const char *loop) { return *name == '\0' || std::strcmp(name, loop) == 0; };
#if defined(EK_XXH3_X86)
  if (wanted("avx512") && can_use_instruction_set("avx512")) {
    return xxh3_loop_avx512;
  }
  if (wanted("avx2") && can_use_instruction_set("avx2")) return xxh3_loop_avx2;
#endif
#if defined(EK_XXH3_NEON)
  if (wanted("neon")) return run_loop<NeonLanes>;
#endif
  return wanted("portable") ? run_loop<PortableLanes> : nullptr;
}

std::uint64_t xxh3_64_with(Xxh3Loop loop, const void *data, std::size_t size) {
  const auto *bytes = static_cast<const std::uint8_t *>(data);
  if (size <= 16) return hash_up_to_16(bytes, size);
  if (size <= 128) return hash_up_to_128(bytes, size);
  return size <= 240 ? hash_up_to_240(bytes, size) : hash_long(loop, bytes, size);
}

static Xxh3Loop fastest_loop() {
  static const Xxh3Loop fastest = xxh3_find_loop("");
  return fastest;
}

std::uint64_t xxh3_64(const void *data, std::size_t size) { return xxh3_64_with(fastest_loop(), data, size); }

Xxh3::Xxh3() { start(lanes_); }

void Xxh3::update(const void *data, std::size_t size) {
  const auto *bytes = static_cast<const std::uint8_t *>(data);
  size_ += size;
  while (size > 0) {
    if (held_ == sizeof kept_ - kXxh3StripeBytes) {
      // A full block is only taken when more follows: the last byte of the input is never part of one.
      fastest_loop()(lanes_, kept_ + kXxh3StripeBytes, 1, 0, nullptr, kSecret);
      std::memcpy(kept_, kept_ + sizeof kept_ - kXxh3StripeBytes, kXxh3StripeBytes);
      held_ = 0;
    }
    if (held_ == 0 && size > kXxh3BlockBytes) {
      const std::size_t blocks = (size - 1) / kXxh3BlockBytes, taken = blocks * kXxh3BlockBytes;
      fastest_loop()(lanes_, bytes, blocks, 0, nullptr, kSecret);
      std::memcpy(kept_, bytes + taken - kXxh3StripeBytes, kXxh3StripeBytes);
      bytes += taken;
      size -= taken;
    }
    const std::size_t room = sizeof kept_ - kXxh3StripeBytes - held_, part = size < room ? size : room;
    std::memcpy(kept_ + kXxh3StripeBytes + held_, bytes, part);
    held_ += part;
    bytes += part;
    size -= part;
  }
}

std::uint64_t Xxh3::digest() const {
  const std::uint8_t *rest = kept_ + kXxh3StripeBytes;
  if (size_ <= 240) return xxh3_64(rest, held_);  // all of the input is there
  std::uint64_t lanes[8];
  std::memcpy(lanes, lanes_, sizeof lanes);
  fastest_loop()(lanes, rest, 0, held_, rest + held_ - kXxh3StripeBytes, kSecret);
  return finish(lanes, size_);
}

}  // namespace edgekit
