// The canvas of a masked family: a prompt, and behind it an answer that begins as masks.
#ifndef EDGEKIT_SAMPLING_MASKED_CANVAS_H
#define EDGEKIT_SAMPLING_MASKED_CANVAS_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sampling/options.h"
#include "sampling/saved_state.h"

namespace edgekit {

struct MaskedCanvas {
  MaskedCanvas() = default;
  MaskedCanvas(const std::vector<std::int64_t> &text, std::int64_t length, std::int64_t mask)
      : ids(text), prompt(static_cast<std::int64_t>(text.size())) {
    ids.resize(text.size() + static_cast<std::size_t>(length), mask);
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
