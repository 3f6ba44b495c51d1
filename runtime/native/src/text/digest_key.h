// Digests for tables of what a file says. They hang on keys that this process has drawn, so that nobody can write a file
// whose entries have one digest, of which each would have to be compared with all the others.
#ifndef EDGEKIT_TEXT_DIGEST_KEY_H
#define EDGEKIT_TEXT_DIGEST_KEY_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "multiply_fold.h"

namespace edgekit {

class DigestKey {
 public:
  DigestKey();  // the process's own
  DigestKey(std::uint64_t first, std::uint64_t second) noexcept : first_(first), second_(second | 1) {}

  std::size_t of(std::uint32_t left, std::uint32_t right) const noexcept {
    return last_step(multiply_fold((std::uint64_t{left} << 32 | right) ^ first_, second_));
  }

  std::size_t of(std::string_view text) const noexcept {
    const char *at = text.data();
    std::size_t left = text.size();
    std::uint64_t found = first_ ^ left;
    for (; left > 8; at += 8, left -= 8) found = multiply_fold(found ^ read<std::uint64_t>(at), second_);
    std::uint64_t last = 0;
    if (left >= 4) {  // bytes in the middle are taken twice
      last = std::uint64_t{read<std::uint32_t>(at)} << 32 | read<std::uint32_t>(at + left - 4);
    } else if (left > 0) {
      const auto byte = [at](std::size_t i) { return std::uint64_t{static_cast<unsigned char>(at[i])}; };
      last = byte(0) << 16 | byte(left / 2) << 8 | byte(left - 1);
    }
    return last_step(multiply_fold(found ^ last, second_));
  }

 private:
  // What differs little, as ids in a row do, differs in the lowest bits too.
  static std::size_t last_step(std::uint64_t value) noexcept {
    return static_cast<std::size_t>(multiply_fold(value, 0x9E3779B97F4A7C15));
  }

  template <typename Number>
  static Number read(const char *from) noexcept {
    Number value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }

  std::uint64_t first_, second_;
};

}  // namespace edgekit

#endif  // EDGEKIT_TEXT_DIGEST_KEY_H
