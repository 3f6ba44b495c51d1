// Texts of callers, one or several.
#ifndef EDGEKIT_ABI_TEXTS_H
#define EDGEKIT_ABI_TEXTS_H

#include <cstdint>
#include <string>
#include <vector>

#include "error.h"

namespace edgekit {

inline std::string text_or_empty(const char *text) { return text == nullptr ? std::string() : std::string(text); }

// Throws Error (EK_INVALID_ARGUMENT) for null, alone or in their place.
inline std::vector<std::string> texts(const char *const *given, std::int32_t count, const char *what) {
  if (count < 0 || (count > 0 && given == nullptr)) {
    fail(EK_INVALID_ARGUMENT, "there are no ", what, " where ", count, " were said");
  }
  constexpr std::int32_t kMost = 1024;  // a count beyond it is no count: there is no such array
  if (count > kMost) fail(EK_INVALID_ARGUMENT, "there are ", count, " ", what, ", and ", kMost, " at most");
  std::vector<std::string> out;
  for (std::int32_t i = 0; i < count; ++i) {
    if (given[i] == nullptr) fail(EK_INVALID_ARGUMENT, "one of the ", what, " is null");
    out.emplace_back(given[i]);
  }
  return out;
}

}  // namespace edgekit

#endif  // EDGEKIT_ABI_TEXTS_H
