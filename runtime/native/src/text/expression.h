// A regular expression as a table: from a state and a character to the next state, so that no text takes longer than its
// length says. It finds what a backtracking matcher finds: of alternatives the first, of repetitions the longest or, with
// a question mark behind, the shortest.
#ifndef EDGEKIT_TEXT_EXPRESSION_H
#define EDGEKIT_TEXT_EXPRESSION_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace edgekit {

class Expression {
 public:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  // Oniguruma's syntax, as far as tokenizers use it: characters and escapes, sets with ranges, \p{..}, \s, \d, \w, groups
  // without a number, (?i:..) around ASCII letters, alternatives, repetitions (those of one character that give nothing
  // back, as ++, where what follows does not want it back), and at the end of an alternative a look at the next character,
  // (?!\S) or (?=\s). `where` begins messages.
  // Throws Error (EK_UNSUPPORTED_BUNDLE) for anything else, and for an expression that matches nothing or is too large.
  Expression(std::string_view pattern, const std::string &where);

  // The first match from `begin` on in a text of UTF-8; kNone: there is none. `read` counts the characters that were looked
  // at, for all matches of a text together. Throws Error (EK_UNSUPPORTED_BUNDLE) where these are many more than the text has:
  // of an expression that often almost matches, or almost matches more.
  struct Found {
    std::size_t begin, end;
  };
  Found find(std::string_view text, std::size_t begin, std::size_t &read) const;

 private:
  friend class ExpressionCompiler;

  std::uint32_t kind_of(std::uint32_t code_point) const noexcept {
    return pages_[(std::size_t{page_of_[code_point >> 8]} << 8) | (code_point & 0xFF)];
  }
  // The end of the match that begins at `begin`; adds to `read` how many characters it took.
  std::size_t run(std::string_view text, std::size_t begin, std::size_t &read) const noexcept;

  // Kinds of characters that the expression tells apart, by pages of 256; the kind behind them is the end of the text.
  std::vector<std::uint16_t> page_of_;
  std::vector<std::uint8_t> pages_;
  std::uint32_t kinds_ = 0;
  // For each state a row with an entry for each kind and the end: the next state, and whether a match ends in front of
  // the character.
  std::vector<std::uint16_t> table_;
  std::string where_;
};

}  // namespace edgekit

#endif  // EDGEKIT_TEXT_EXPRESSION_H
