#include "sha256.h"

#include <algorithm>
#include <cstring>

#include "cpu.h"

namespace edgekit {
namespace {

std::uint32_t rotate(std::uint32_t value, int bits) noexcept { return value >> bits | value << (32 - bits); }

void take_block(std::uint32_t *state, const std::uint8_t *block) noexcept {
  std::uint32_t w[64];
  for (std::size_t i = 0; i < 16; ++i, block += 4) {
    w[i] = std::uint32_t{block[0]} << 24 | std::uint32_t{block[1]} << 16 | std::uint32_t{block[2]} << 8 | block[3];
  }
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t low = w[i - 15], high = w[i - 2];
    w[i] = w[i - 16] + (rotate(low, 7) ^ rotate(low, 18) ^ low >> 3) + w[i - 7] +
           (rotate(high, 17) ^ rotate(high, 19) ^ high >> 10);
  }
  std::uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
  std::uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t first =
        h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + kSha256Rounds[i] + w[i];
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
  for (std::size_t i = 0; i < 8; ++i) state[i] += added[i];
}

void take_blocks(std::uint32_t *state, const std::uint8_t *data, std::size_t blocks) noexcept {
  for (; blocks > 0; --blocks, data += kSha256BlockBytes) take_block(state, data);
}

}  // namespace

Sha256Blocks sha256_find_blocks(const char *name) noexcept {
  const auto wanted = [name](const char *blocks) { return *name == '\0' || std::strcmp(name, blocks) == 0; };
#if defined(__x86_64__) || defined(_M_X64)
  if (wanted("shani") && can_use_instruction_set("shani")) return sha256_blocks_shani;
#elif defined(__aarch64__) || defined(_M_ARM64)
  if (wanted("sha2") && can_use_instruction_set("sha2")) return sha256_blocks_sha2;
#endif
  return wanted("portable") ? take_blocks : nullptr;
}

Sha256::Sha256() {
  static const Sha256Blocks fastest = sha256_find_blocks("");
  blocks_ = fastest;
}

void Sha256::update(const void *data, std::size_t size) noexcept {
  const auto *bytes = static_cast<const std::uint8_t *>(data);
  size_ += size;
  while (size > 0) {
    if (held_ == 0 && size >= sizeof block_) {
      const std::size_t blocks = size / sizeof block_;
      blocks_(state_, bytes, blocks);
      bytes += blocks * sizeof block_;
      size -= blocks * sizeof block_;
      continue;
    }
    const std::size_t part = std::min(size, sizeof block_ - held_);
    std::memcpy(block_ + held_, bytes, part);
    held_ += part;
    bytes += part;
    size -= part;
    if (held_ == sizeof block_) {
      blocks_(state_, block_, 1);
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
