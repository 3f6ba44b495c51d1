#include "session/kept_text.h"

#include <algorithm>

#include "error.h"
#include "sampling/text_number.h"

namespace edgekit {

void KeptText::reserve(std::int64_t length) {
  const auto size = static_cast<std::size_t>(length);
  // Twice as much where there is too little: pieces may be single tokens.
  for (std::vector<std::int64_t> *each : {&ids_, &stops_}) {
    if (each->capacity() < size + 1) each->reserve(std::max(size + 1, 2 * each->capacity()));
  }
  if (numbers_.capacity() < size) numbers_.reserve(std::max(size, 2 * numbers_.capacity()));
}

void KeptText::kept(std::int64_t at, const std::int64_t *ids, std::int64_t count, bool encoded) {
  if (const std::int64_t stop = known(at); stop < length()) {
    ids_.resize(static_cast<std::size_t>(stop));
    numbers_.resize(ids_.size());
    while (!stops_.empty() && stops_.back() > stop) stops_.pop_back();
    if (stop > (stops_.empty() ? 0 : stops_.back())) stops_.push_back(stop);
  }
  if (!encoded || at != length() || count == 0) return;
  for (std::int64_t i = 0; i < count; ++i) {
    numbers_.push_back(text_number(numbers_.empty() ? kEmptyText : numbers_.back(), ids[i]));
    ids_.push_back(ids[i]);
  }
  stops_.push_back(length());
}

void KeptText::join(std::int64_t from) {
  while (stops_.size() > 1 && stops_[stops_.size() - 2] > from) stops_.erase(stops_.end() - 2);
}

std::int64_t KeptText::known(std::int64_t length) const {
  if (length >= this->length()) return this->length();
  const auto stop = std::upper_bound(stops_.begin(), stops_.end(), length);
  const std::int64_t first = stop == stops_.begin() ? 0 : *(stop - 1);
  return length - (length - first) % block_;
}

void KeptText::require(std::int64_t length) const {
  if (known(length) == length) return;
  fail(EK_INVALID_STATE, "of the ", length, " kept positions only the first ", known(length),
       " can be encoded again: passes have kept a canvas, rows in the middle, rows of another adapter, or rows that see what "
       "`seen` names", block_ == 1 ? "" : ", or a block has lost its end", "; crop the text to these, or reset it");
}

std::uint64_t KeptText::number(std::int64_t length) const {
  if (length == 0) return kEmptyText;
  return known(length) == length ? numbers_[static_cast<std::size_t>(length) - 1] : kNoText;
}

std::vector<std::int64_t> KeptText::ids(std::int64_t length) const {
  return {ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(length)};
}

std::vector<std::int64_t> KeptText::pieces(std::int64_t length) const {
  std::vector<std::int64_t> lengths;
  std::int64_t from = 0;
  for (const std::int64_t stop : stops_) {
    if (from >= length) break;
    lengths.push_back(std::min(stop, length) - from);
    from = stop;
  }
  return lengths;
}

}  // namespace edgekit
