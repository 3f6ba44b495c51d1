#include "fetch/byte_ranges.h"

#include <algorithm>
#include <iterator>

namespace edgekit {

void ByteRanges::add(ByteRange range) {
  if (range.begin >= range.end) return;
  auto at = ends_.upper_bound(range.begin);
  if (at != ends_.begin() && std::prev(at)->second >= range.begin) --at;
  while (at != ends_.end() && at->first <= range.end) {
    range.begin = std::min(range.begin, at->first);
    range.end = std::max(range.end, at->second);
    at = ends_.erase(at);
  }
  ends_.emplace(range.begin, range.end);
}

void ByteRanges::add(const ByteRanges &others) {
  for (const auto &[begin, end] : others.ends_) add({begin, end});
}

void ByteRanges::remove(ByteRange range) {
  if (range.begin >= range.end) return;
  auto at = ends_.upper_bound(range.begin);
  if (at != ends_.begin() && std::prev(at)->second > range.begin) --at;
  while (at != ends_.end() && at->first < range.end) {
    const ByteRange had{at->first, at->second};
    at = ends_.erase(at);
    if (had.begin < range.begin) ends_.emplace(had.begin, range.begin);
    if (had.end > range.end) at = ends_.emplace(range.end, had.end).first;
  }
}

std::uint64_t ByteRanges::bytes() const noexcept {
  std::uint64_t count = 0;
  for (const auto &[begin, end] : ends_) count += end - begin;
  return count;
}

bool ByteRanges::holds(ByteRange range) const noexcept {
  if (range.empty()) return true;
  const auto at = ends_.upper_bound(range.begin);
  return at != ends_.begin() && std::prev(at)->second >= range.end;
}

bool ByteRanges::overlaps(ByteRange range) const noexcept {
  bool found = false;
  visit(range, [&found](ByteRange) { found = true; });
  return found;
}

ByteRange ByteRanges::first(std::uint64_t most) const noexcept {
  if (ends_.empty()) return {};
  const auto &[begin, end] = *ends_.begin();
  return {begin, end - begin > most ? begin + most : end};
}

}  // namespace edgekit
