// Which names may appear in messages, and how text from a file is quoted there.
#ifndef EDGEKIT_PRINTABLE_H
#define EDGEKIT_PRINTABLE_H

#include <cstdint>
#include <string>
#include <string_view>

namespace edgekit {

// The decision of Python's str.isprintable for every code point that Unicode has assigned: no control, format,
// surrogate or private-use characters and no separators but the space. What is unassigned today counts as printable,
// because a later Unicode version may assign it.
bool is_printable(std::uint32_t code_point) noexcept;

// Of a string as Json holds it: UTF-8 in which lone surrogates are encoded too.
bool is_printable(std::string_view text) noexcept;

// UTF-8 without line breaks: `text` with escapes for control characters, line separators, surrogates, and bytes that
// are not UTF-8.
std::string one_line(std::string_view text);

// Of a longer text than messages need the middle is left out: names in files may have any length.
std::string shortened(std::string text);

// 'text' in quotes, with escapes for what cannot be printed, cut to `limit` characters.
std::string in_quotes(std::string_view text, std::size_t limit = 80);

}  // namespace edgekit

#endif  // EDGEKIT_PRINTABLE_H
