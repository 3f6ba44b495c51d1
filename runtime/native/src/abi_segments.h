// The segments of a pass that a sampler asks for, as the C ABI has them.
#ifndef EDGEKIT_ABI_SEGMENTS_H
#define EDGEKIT_ABI_SEGMENTS_H

#include <cstdint>
#include <vector>

#include "abi_generation.h"
#include "edgekit.h"
#include "sampling/ask.h"

namespace edgekit {

// They point into this object and into what they were made of.
class AskedSegments {
 public:
  void set(const std::vector<AskSegment> &asked) {
    const std::size_t count = asked.size();
    segments_.assign(count, EK_PASS_SEGMENT_INIT);
    positions_.assign(count, {});
    seen_.assign(count, {});
    requests_.assign(count, EK_HEAD_REQUEST_INIT);
    for (std::size_t i = 0; i < count; ++i) set(asked[i], i);
  }
  const ek_pass_segment *data() const { return segments_.empty() ? nullptr : segments_.data(); }
  std::int64_t size() const { return static_cast<std::int64_t>(segments_.size()); }

 private:
  void set(const AskSegment &asked, std::size_t i) {
    ek_pass_segment &to = segments_[i];
    to.causal = asked.block != 0;
    to.block = asked.block;
    to.adapter = asked.adapter;
    to.ids = asked.ids.data();
    to.count = static_cast<std::int64_t>(asked.ids.size());
    positions_[i] = asked.row_positions();
    to.positions = positions_[i].data();
    if (asked.keep) to.keep_at = asked.at;
    to.keep_count = asked.keep_count;
    const bool all = asked.keep && !asked.seen;  // that is kept before it
    if (asked.seen) {
      for (const SeenRows &rows : *asked.seen) seen_[i].push_back({rows.segment, rows.first, rows.count});
    } else if (!all) {
      seen_[i].push_back({-1, 0, asked.at});
    }
    if (!all) {
      seen_[i].reserve(1);  // an address also where it sees nothing
      to.seen = seen_[i].data();
      to.seen_count = static_cast<std::int64_t>(seen_[i].size());
    }
    if (!asked.request) return;
    requests_[i] = request_for(*asked.request, asked.rows());
    to.request = &requests_[i];
  }

  std::vector<ek_pass_segment> segments_;
  std::vector<std::vector<std::int64_t>> positions_;
  std::vector<std::vector<ek_seen_rows>> seen_;
  std::vector<ek_head_request> requests_;
};

}  // namespace edgekit

#endif  // EDGEKIT_ABI_SEGMENTS_H
