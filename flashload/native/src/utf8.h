// UTF-8 by hand: the C++ library has no decoder that is neither deprecated nor dependent on the locale.
#ifndef EDGEKIT_UTF8_H
#define EDGEKIT_UTF8_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace edgekit {

// Position of the first byte that is not UTF-8 (Unicode, table 3-7), or the size of the text.
std::size_t utf8_prefix(std::string_view text) noexcept;

// A surrogate is appended as if it were a character.
void append_utf8(std::string &out, std::uint32_t code_point);

// Reads one character of UTF-8 in which surrogates may stand too, and moves `at` past it. Bytes that are cut off at
// the end of the text count as zero.
std::uint32_t next_code_point(std::string_view text, std::size_t &at) noexcept;

}  // namespace edgekit

#endif  // EDGEKIT_UTF8_H
