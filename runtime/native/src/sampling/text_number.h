// A number for a text: equal texts have equal ones, others with all likelihood not. Nobody is meant to be kept from making
// two texts of one number; it tells apart what a caller has mixed up.
#ifndef EDGEKIT_SAMPLING_TEXT_NUMBER_H
#define EDGEKIT_SAMPLING_TEXT_NUMBER_H

#include <cstddef>
#include <cstdint>

namespace edgekit {

// What is not known; of what keeps rows that no encoding of a text gives, which equals no text; and of no text.
constexpr std::uint64_t kAnyText = 0, kNoText = 1, kEmptyText = 2;

// The number of a text and a token behind it: a step of splitmix64.
inline std::uint64_t text_number(std::uint64_t text, std::int64_t token) {
  std::uint64_t x = text + 0x9e3779b97f4a7c15ULL * (static_cast<std::uint64_t>(token) + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  x ^= x >> 31;
  return x > kEmptyText ? x : kEmptyText + 1;
}

// The same of tokens behind a text; what is not known, or no text, stays that.
inline std::uint64_t text_number(std::uint64_t text, const std::int64_t *tokens, std::size_t count) {
  for (std::size_t i = 0; i < count && text >= kEmptyText; ++i) text = text_number(text, tokens[i]);
  return text;
}

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_TEXT_NUMBER_H
