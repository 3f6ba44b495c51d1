// Sets of bytes of a file.
#ifndef EDGEKIT_BYTE_RANGES_H
#define EDGEKIT_BYTE_RANGES_H

#include <cstdint>
#include <map>

namespace edgekit {

// Those from `begin` on, before `end`.
struct ByteRange {
  std::uint64_t begin = 0, end = 0;

  std::uint64_t bytes() const noexcept { return end - begin; }
  bool empty() const noexcept { return begin == end; }
};

class ByteRanges {
 public:
  void add(ByteRange range);
  void add(const ByteRanges &others);
  void remove(ByteRange range);
  void clear() noexcept { ends_.clear(); }

  bool empty() const noexcept { return ends_.empty(); }
  std::uint64_t bytes() const noexcept;
  std::uint64_t end() const noexcept { return ends_.empty() ? 0 : ends_.rbegin()->second; }  // behind the last
  bool holds(ByteRange range) const noexcept;     // all of it; true for an empty one
  bool overlaps(ByteRange range) const noexcept;  // any of it

  // Those in `range`, in order.
  template <typename Visit>
  void visit(ByteRange range, Visit &&visit) const {
    auto at = ends_.upper_bound(range.begin);
    if (at != ends_.begin()) --at;
    for (; at != ends_.end() && at->first < range.end; ++at) {
      const ByteRange part{at->first < range.begin ? range.begin : at->first, at->second < range.end ? at->second : range.end};
      if (part.begin < part.end) visit(part);
    }
  }

  // The first of them, at most `most` bytes; empty where there is none.
  ByteRange first(std::uint64_t most) const noexcept;

 private:
  std::map<std::uint64_t, std::uint64_t> ends_;  // by where each begins; none touches another
};

}  // namespace edgekit

#endif  // EDGEKIT_BYTE_RANGES_H
