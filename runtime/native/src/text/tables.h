// What the parts of a tokenizer.json have in common.
#ifndef EDGEKIT_TEXT_TABLES_H
#define EDGEKIT_TEXT_TABLES_H

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

// A few replacements one behind the other, each of them harmless, make gigabytes of a line. Published tokenizers stay
// below 20. Throws Error (EK_UNSUPPORTED_BUNDLE).
inline void check_growth(std::size_t before, std::size_t after) {
  constexpr std::size_t kMost = 64, kAlways = 4096;
  if (after > kAlways && after / kMost > before) {
    fail(EK_UNSUPPORTED_BUNDLE, "tokenizer.json: makes a text more than ", kMost,
         " times as long, as no tokenizer does; download it again");
  }
}

// A member that is a text in which every character is one.
inline const std::string &text_of(const Json &table) {
  const std::string &text = table.string();
  if (utf8_prefix(text) != text.size()) {
    fail(EK_MALFORMED_FILE, table.where(), ": half a surrogate pair in line ", table.line(), "; download it again");
  }
  return text;
}

}  // namespace edgekit

#endif  // EDGEKIT_TEXT_TABLES_H
