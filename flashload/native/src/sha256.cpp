#include "sha256.h"

#include <algorithm>
#include <cstring>

namespace edgekit {
namespace {

// The first 32 bits of the fractions of the cube roots of the first 64 primes.
constexpr std::uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

std::uint32_t rotate(std::uint32_t value, int bits) noexcept { return value >> bits | value << (32 - bits); }

}  // namespace

void Sha256::take_block(const std::uint8_t *block) noexcept {
  std::uint32_t w[64];
  for (std::size_t i = 0; i < 16; ++i, block += 4) {
    w[i] = std::uint32_t{block[0]} << 24 | std::uint32_t{block[1]} << 16 | std::uint32_t{block[2]} << 8 | block[3];
  }
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t low = w[i - 15], high = w[i - 2];
    w[i] = w[i - 16] + (rotate(low, 7) ^ rotate(low, 18) ^ low >> 3) + w[i - 7] +
           (rotate(high, 17) ^ rotate(high, 19) ^ high >> 10);
  }
  std::uint32_t a = state_[0], b = state_[1], c = state_[2], d = state_[3];
  std::uint32_t e = state_[4], f = state_[5], g = state_[6], h = state_[7];
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t first =
        h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
    const std::uint32_t second = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const std::uint32_t added[8] = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state_[i] += added[i];
}

void Sha256::update(const void *data, std::size_t size) noexcept {
  const auto *bytes = static_cast<const std::uint8_t *>(data);
  size_ += size;
  while (size > 0) {
    if (held_ == 0 && size >= sizeof block_) {
      take_block(bytes);
      bytes += sizeof block_;
      size -= sizeof block_;
      continue;
    }
    const std::size_t part = std::min(size, sizeof block_ - held_);
    std::memcpy(block_ + held_, bytes, part);
    held_ += part;
    bytes += part;
    size -= part;
    if (held_ == sizeof block_) {
      take_block(block_);
      held_ = 0;
    }
  }
}

std::string Sha256::hex() {
  const std::uint64_t bits = size_ * 8;
  const std::uint8_t one = 0x80, zero = 0;
  update(&one, 1);
  while (held_ != sizeof block_ - 8) update(&zero, 1);
  std::uint8_t length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<std::uint8_t>(bits >> (56 - 8 * i));
  update(length, sizeof length);
  std::string out;
  for (const std::uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) out += "0123456789abcdef"[word >> shift & 0xF];
  }
  return out;
}

}  // namespace edgekit
