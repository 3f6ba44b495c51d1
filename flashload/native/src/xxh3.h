// XXH3, 64 bits, seed 0, default secret (github.com/Cyan4973/xxHash, doc/xxhash_spec.md).
#ifndef EDGEKIT_XXH3_H
#define EDGEKIT_XXH3_H

#include <cstddef>
#include <cstdint>

namespace edgekit {

std::uint64_t xxh3_64(const void *data, std::size_t size);

// The same of an input that comes in parts.
class Xxh3 {
 public:
  Xxh3();
  void update(const void *data, std::size_t size);
  std::uint64_t digest() const;

 private:
  std::uint64_t lanes_[8];
  std::uint64_t size_ = 0;  // of the input so far
  std::size_t held_ = 0;    // bytes of it that no block was made of
  // The last 64 bytes before those that are held, and these: the last stripe may begin in a block.
  std::uint8_t kept_[64 + 1024];
};

}  // namespace edgekit

#endif  // EDGEKIT_XXH3_H
