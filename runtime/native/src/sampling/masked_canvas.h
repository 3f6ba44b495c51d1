// The canvas of a masked family: a prompt, and behind it an answer that begins as masks, or partly given.
#ifndef EDGEKIT_SAMPLING_MASKED_CANVAS_H
#define EDGEKIT_SAMPLING_MASKED_CANVAS_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sampling/options.h"
#include "sampling/saved_state.h"
#include "sampling/schedule.h"

namespace edgekit {

struct MaskedCanvas {
  MaskedCanvas() = default;
  // `given` is what the answer begins with, masks where it is open; what is behind it is open too.
  MaskedCanvas(const std::vector<std::int64_t> &text, const std::vector<std::int64_t> &given, std::int64_t length,
               std::int64_t mask)
      : ids(text), prompt(static_cast<std::int64_t>(text.size())) {
    ids.insert(ids.end(), given.begin(), given.end());
    ids.resize(text.size() + static_cast<std::size_t>(length), mask);
  }

  // Which positions of an answer are open before anything is committed.
  static std::vector<std::uint8_t> open(const std::vector<std::int64_t> &given, std::int64_t length, std::int64_t mask) {
    std::vector<std::uint8_t> flags(static_cast<std::size_t>(length), 1);
    for (std::size_t i = 0; i < given.size(); ++i) flags[i] = given[i] == mask;
    return flags;
  }

  // Where end tokens begin to count: at the last token that is given and no end token itself.
  static std::int64_t ends_from(const std::vector<std::int64_t> &given, std::int64_t mask,
                                const std::vector<std::int64_t> &end_ids) {
    for (std::size_t i = given.size(); i > 0; --i) {
      if (given[i - 1] != mask && !contains(end_ids, given[i - 1])) return static_cast<std::int64_t>(i) - 1;
    }
    return 0;
  }

  std::vector<std::int64_t> ids;
  std::int64_t prompt = 0;  // tokens of it

  std::int64_t *answer() { return ids.data() + prompt; }
  // Of the answer as it stands.
  std::vector<std::int64_t> tokens() const { return {ids.begin() + static_cast<std::ptrdiff_t>(prompt), ids.end()}; }

  // Of a saved state, for an answer of that length.
  template <typename Archive, typename Self>
  static void fields(Archive &archive, Self &self, std::int64_t answer, std::int64_t vocabulary) {
    archive.integer("a length of the prompt", self.prompt, {0, kMostTokens});
    const std::int64_t length = self.prompt + answer;
    archive.integers("the tokens of a canvas", self.ids, {length, length}, {0, vocabulary - 1});
  }
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_MASKED_CANVAS_H
