// Values as JSON text: what a saved state holds, and how messages and listings show what was given.
#ifndef EDGEKIT_SAMPLING_JSON_TEXT_H
#define EDGEKIT_SAMPLING_JSON_TEXT_H

#include <string>
#include <string_view>

#include "json.h"

namespace edgekit {

// The fewest digits that give the number back.
std::string json_text(double value);

// In double quotes.
std::string json_text(std::string_view value);

// A value that somebody gave, for a message: text is escaped, what is long is cut.
std::string shown(const Json &value);

// Joins words with `separator`.
template <typename Words>
std::string joined(const Words &words, const char *separator = ", ") {
  std::string all;
  for (const auto &word : words) all += (all.empty() ? "" : separator) + std::string(word);
  return all;
}

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_JSON_TEXT_H
