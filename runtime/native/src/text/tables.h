// What the parts of a tokenizer.json, and a chat.json, have in common.
#ifndef EDGEKIT_TEXT_TABLES_H
#define EDGEKIT_TEXT_TABLES_H

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "error.h"
#include "json.h"
#include "utf8.h"

namespace edgekit {

// "type" of a part of a tokenizer.json.
inline const std::string &type_of(const Json &table) { return table.at("type").string(); }

[[noreturn]] inline void unknown_part(const Json &table, const char *part, std::string_view name) {
  fail(EK_UNSUPPORTED_BUNDLE, table.where(), ": its ", part, " is ", in_quotes(name),
       ", which this library does not know; encode its texts elsewhere, and give the ids");
}

// A boolean member; `otherwise` where it is not there.
inline bool flag(const Json &table, std::string_view name, bool otherwise) {
  const Json *found = table.find(name);
  return found == nullptr || found->is_null() ? otherwise : found->boolean();
}

// How many bytes may be made of `before`. A few replacements one behind the other, each of them harmless, make gigabytes
// of a line. Published tokenizers stay below 20 times as many.
inline std::size_t most_bytes(std::size_t before) {
  constexpr std::size_t kMost = 64, kAlways = 4096, kLongest = std::size_t{1} << 30;
  return std::min(std::max(kAlways, std::min(before, kLongest) * kMost), kLongest);
}

// Throws Error (EK_UNSUPPORTED_BUNDLE).
inline void check_growth(std::size_t before, std::size_t after) {
  if (after > most_bytes(before)) {
    fail(EK_UNSUPPORTED_BUNDLE, "tokenizer.json: makes more than ", most_bytes(before), " bytes of a text of ", before,
         ", as no tokenizer does; download it again");
  }
}

// Every step of a part goes through a text once. Published tokenizers have four at most.
inline void check_steps(const Json &table, const char *part, std::size_t count) {
  constexpr std::size_t kMost = 16;
  if (count > kMost) {
    fail(EK_UNSUPPORTED_BUNDLE, table.where(), ": its ", part, " has more than ", kMost,
         " steps, as no tokenizer has; download it again");
  }
}

// A text in which every character is one.
inline const std::string &utf8_of(const Json &table) {
  const std::string &text = table.string();
  if (utf8_prefix(text) != text.size()) {
    fail(EK_MALFORMED_FILE, table.where(), ": half a surrogate pair in line ", table.line(), "; download it again");
  }
  return text;
}

// Bytes of a token, or of a text that is looked for in others. Published ones have 256.
constexpr std::size_t kMostTokenBytes = 4096;

// A text of no more.
inline const std::string &text_of(const Json &table) {
  const std::string &text = utf8_of(table);
  if (text.size() > kMostTokenBytes) {
    fail(EK_UNSUPPORTED_BUNDLE, table.where(), ": a text of ", text.size(), " bytes in line ", table.line(),
         ", longer than any that tokenizers look for; download it again");
  }
  return text;
}

// A text of one character.
inline const std::string &character_of(const Json &table) {
  const std::string &text = text_of(table);
  std::size_t end = 0;
  if (!text.empty()) next_code_point(text, end);
  if (text.empty() || end != text.size()) {
    fail(EK_MALFORMED_FILE, table.where(), ": ", in_quotes(text), " in line ", table.line(),
         ", where one character is to stand; download it again");
  }
  return text;
}

}  // namespace edgekit

#endif  // EDGEKIT_TEXT_TABLES_H
