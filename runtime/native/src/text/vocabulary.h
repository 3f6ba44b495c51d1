// Tokens by id, and ids by their text.
#ifndef EDGEKIT_TEXT_VOCABULARY_H
#define EDGEKIT_TEXT_VOCABULARY_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/digest_key.h"

namespace edgekit {

class Vocabulary {
 public:
  using Id = std::uint32_t;
  static constexpr Id kNone = static_cast<Id>(-1);
  static constexpr Id kMostIds = Id{1} << 22;  // published ones have 262,144

  // False where the id is not below kMostIds, or has a text already.
  bool put(Id id, std::string_view text);

  // Once all are there: finds ids from then on. False where two ids have one text.
  bool settle();

  std::size_t count() const noexcept { return count_; }
  Id size() const noexcept { return static_cast<Id>(places_.size()); }  // one more than the largest id
  bool has(Id id) const noexcept { return id < places_.size() && places_[id].there; }
  std::string_view text(Id id) const noexcept {
    return std::string_view(texts_).substr(places_[id].begin, places_[id].size);
  }
  Id find(std::string_view text) const noexcept;

 private:
  struct Place {
    std::uint32_t begin = 0, size = 0;
    bool there = false;
  };
  std::size_t slot(std::string_view text) const noexcept;

  std::string texts_;
  std::vector<Place> places_;
  std::vector<Id> slots_;  // by digest of the text; a power of two, half of them free
  std::size_t count_ = 0;
  DigestKey key_;
};

}  // namespace edgekit

#endif  // EDGEKIT_TEXT_VOCABULARY_H
