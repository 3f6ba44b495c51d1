// What passes have kept of a canvas, of a model without a prefix.
#ifndef EDGEKIT_SAMPLING_CACHED_CANVAS_H
#define EDGEKIT_SAMPLING_CACHED_CANVAS_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sampling/ask.h"
#include "sampling/options.h"
#include "sampling/saved_state.h"

namespace edgekit {

// Each row is kept by one pass, and later ones compute those that no pass has kept. Kept rows need no order, because keys
// carry their own position: they lie in the order in which they were kept. From when each token stood there and when its row was
// kept follows every pass, so that they can be run again.
class CachedCanvas {
 public:
  using Ids = std::vector<std::int64_t>;
  using Flags = std::vector<std::uint8_t>;

  // Passes that were computed.
  std::int64_t passes() const { return passes_; }
  // Positions of the canvas.
  std::int64_t length() const { return static_cast<std::int64_t>(ids_.size()); }

  // The next pass is of canvas `ids`; tokens are still to come where it is `open`, and rows are not to be kept where they
  // are `fresh`. Of the same length as the passes before.
  void show(const Ids &ids, const Flags &open, const Flags &fresh);

  // Of a pass before the next, or that one: its rows, the kept ones first, which see what was kept before. Without a request.
  AskSegment segment(std::int64_t pass) const;

  // Rows that are kept before it.
  std::int64_t kept(std::int64_t pass) const {
    return std::count_if(kept_in_.begin(), kept_in_.end(), [&](std::int64_t own) { return own < pass; });
  }

  // The pass has been computed.
  void computed() { ++passes_; }

  // Of a saved state.
  template <typename Archive, typename Self>
  static void fields(Archive &archive, Self &self, std::int64_t vocabulary) {
    constexpr StateLimits lengths{0, kMostTokens};
    archive.integer("a number of passes", self.passes_, lengths);
    archive.integers("a kept canvas", self.ids_, lengths, {0, vocabulary - 1});
    const std::int64_t length = self.length();
    archive.integer("a token of open positions", self.open_token_, {0, vocabulary - 1});
    archive.integers("passes of tokens", self.stood_in_, {length, length}, {0, kNever});
    archive.integers("passes of rows", self.kept_in_, {length, length}, {0, kNever});
  }

 private:
  static constexpr std::int64_t kNever = std::int64_t{1} << 62;

  Ids ids_;                      // as they stand now
  std::int64_t open_token_ = 0;  // that they are before
  // By position: the first pass in which its token stood there, and the one that kept its row.
  Ids stood_in_, kept_in_;
  std::int64_t passes_ = 0;
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_CACHED_CANVAS_H
