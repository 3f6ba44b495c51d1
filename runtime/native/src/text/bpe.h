// Byte pair encoding: the pieces of a word, of which the two that were learned first to go together are joined, again and
// again.
#ifndef EDGEKIT_TEXT_BPE_H
#define EDGEKIT_TEXT_BPE_H

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace edgekit {

class Bpe {
 public:
  using Id = Vocabulary::Id;

  // What a character that is no token becomes.
  struct Unknown {
    Id id = Vocabulary::kNone;  // kNone: it is left out
    bool fused = false;         // several in a row are one
    bool bytes = false;         // tokens of its bytes, <0x0A>, where all of them are there
  };

  // Words are texts of characters, or with `of_bytes` of bytes, which every token stands for then.
  // `whole_words`: a word that is a token is not put together. As many as `most_merges` can be added.
  Bpe(Vocabulary vocabulary, bool of_bytes, bool whole_words, Unknown unknown, std::size_t most_merges);

  // Two tokens that become one, behind all that were added before. False where the pair is there already.
  bool add_merge(Id left, Id right, Id whole);

  // Whether each byte of a text is a token: a letter of it with `of_bytes`, else one of those like <0x0A>.
  bool has_all_bytes() const noexcept;

  const Vocabulary &vocabulary() const noexcept { return vocabulary_; }

  // Ids of a word are put behind `out`.
  void encode(std::string_view word, std::vector<Id> &out) const;

 private:
  struct Merge {
    Id left = Vocabulary::kNone, right = 0;
    std::uint32_t rank = 0;
    Id whole = 0;
  };
  struct Symbol {
    Id id;
    std::int32_t before, behind;  // -1: none
    bool there;
  };

  void begin(std::string_view word, std::vector<Symbol> &symbols) const;
  void merge(std::vector<Symbol> &symbols) const;
  std::size_t slot(Id left, Id right) const noexcept;
  const Merge *find(Id left, Id right) const noexcept;

  Vocabulary vocabulary_;
  bool of_bytes_, whole_words_;
  Unknown unknown_;
  std::array<Id, 256> byte_ids_;
  std::vector<Merge> merges_;  // by digest of both; a power of two, half of them free
  DigestKey key_;
  std::uint32_t count_ = 0;
};

// How the token of a byte is spelled: <0x0A>.
std::string byte_token(unsigned byte);

}  // namespace edgekit

#endif  // EDGEKIT_TEXT_BPE_H
