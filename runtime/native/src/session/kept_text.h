// The token ids behind what a sequence keeps, as far as it is text: in the pieces in which they were encoded.
#ifndef EDGEKIT_SESSION_KEPT_TEXT_H
#define EDGEKIT_SESSION_KEPT_TEXT_H

#include <cstddef>
#include <cstdint>
#include <vector>

namespace edgekit {

// Another sequence that encodes the same pieces keeps the same keys and values, to the bit.
class KeptText {
 public:
  // `block`: rows of a piece that see each other, counted from its first; 1: it is causal.
  explicit KeptText(std::int64_t block) : block_(block) {}

  // So that `kept` cannot fail up to that length.
  void reserve(std::int64_t length);

  // To be told what is kept from position `at` on; `encoded`: nothing else has gone into it than encoding these ids behind
  // what precedes them. Of anything else the text ends before it.
  void kept(std::int64_t at, const std::int64_t *ids, std::int64_t count, bool encoded);

  // That all pieces from position `from` on, where one begins, are of one call, which a session cuts as it likes.
  void join(std::int64_t from);

  // How many of `length` kept positions, from the first on, are text. Rows of a block that has lost its end are none: they
  // saw it.
  std::int64_t known(std::int64_t length) const;

  // Throws Error (EK_INVALID_STATE) unless all of them are.
  void require(std::int64_t length) const;

  // Of `length` kept positions that are all text: their ids, and the lengths of its pieces. Of any: the number of the text,
  // see text_number.h.
  std::uint64_t number(std::int64_t length) const;
  std::vector<std::int64_t> ids(std::int64_t length) const;
  std::vector<std::int64_t> pieces(std::int64_t length) const;

 private:
  std::int64_t length() const { return static_cast<std::int64_t>(ids_.size()); }

  std::int64_t block_;
  std::vector<std::int64_t> ids_, stops_;  // stops_[i]: where piece i ends
  std::vector<std::uint64_t> numbers_;     // of the text up to each position
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_KEPT_TEXT_H
