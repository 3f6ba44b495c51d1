// SHA-256 (FIPS 180-4).
#ifndef EDGEKIT_SHA256_H
#define EDGEKIT_SHA256_H

#include <cstddef>
#include <cstdint>
#include <string>

#include "sha256_kernels.h"

namespace edgekit {

// Of an input that comes in parts.
class Sha256 {
 public:
  Sha256();
  void update(const void *data, std::size_t size) noexcept;
  // 64 lower-case hex digits. Ends the input.
  std::string hex();

 private:
  Sha256Blocks blocks_;
  std::uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::uint64_t size_ = 0;
  std::size_t held_ = 0;
  std::uint8_t block_[64];
};

}  // namespace edgekit

#endif  // EDGEKIT_SHA256_H
