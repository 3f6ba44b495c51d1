// What a tokenizer changes in a text before it splits it.
#ifndef EDGEKIT_TEXT_NORMALIZER_H
#define EDGEKIT_TEXT_NORMALIZER_H

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"

namespace edgekit {

// What a part of a text stands behind: nothing, for it begins the text; text that it goes on; a token.
enum class Place { begins, goes_on, behind };

class Normalizer {
 public:
  Normalizer() = default;

  // Of a tokenizer.json: null, NFC, Prepend, Replace of a text, or a Sequence of these.
  // Throws Error (EK_UNSUPPORTED_BUNDLE, EK_MALFORMED_FILE).
  explicit Normalizer(const Json &table);

  // Whether it does nothing, and whether nothing but to compose.
  bool empty() const noexcept { return steps_.empty(); }
  bool only_composes() const noexcept;

  // Nothing is put in front of a text that goes on. Throws Error (EK_UNSUPPORTED_BUNDLE) where a text becomes longer than
  // any tokenizer makes it.
  std::string apply(std::string_view text, Place place = Place::begins) const;

 private:
  struct Step {
    enum class Kind { compose, prepend, replace } kind;
    std::string what, by;
  };
  void add(const Json &table);
  std::vector<Step> steps_;
};

// What a Replace puts in place of what, in a `part` of a tokenizer.json. Throws Error as the part does.
struct Replacement {
  Replacement(const Json &table, const char *part);
  std::string what, by;
};

// Every `what` in `text` by `by`. Throws Error (EK_UNSUPPORTED_BUNDLE) where that is more than may be made of the `before`
// bytes that it all began with.
std::string replaced(std::string_view text, std::string_view what, std::string_view by, std::size_t before);

}  // namespace edgekit

#endif  // EDGEKIT_TEXT_NORMALIZER_H
