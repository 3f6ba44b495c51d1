// Text to token ids and back, as the tokenizer.json of a checkpoint says.
#ifndef EDGEKIT_TEXT_TOKENIZER_H
#define EDGEKIT_TEXT_TOKENIZER_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/splitter.h"

namespace edgekit {

class Tokenizer {
 public:
  using Id = Vocabulary::Id;
  static constexpr std::size_t kMostFileBytes = std::size_t{128} << 20;  // the largest published one has 35 MB

  // `text` is that of a tokenizer.json, `where` names it in messages. A length limit and padding in it are left out.
  // Throws Error: EK_MALFORMED_FILE, and EK_UNSUPPORTED_BUNDLE for a part that this library does not know.
  Tokenizer(std::string_view text, const std::string &where);

  // The token spelled exactly so; kNone: there is none.
  Id find(std::string_view token) const;

  // How many tokens have a text.
  std::size_t count() const;

  // Ids of a text of UTF-8; `add_special`: with what the tokenizer puts around a text.
  // Throws Error (EK_INVALID_ARGUMENT) for other bytes.
  std::vector<Id> encode(std::string_view text, bool add_special) const;

  // Ids of a text that goes on behind another one: nothing is put in front of it or around it. Throws Error as `encode`.
  std::vector<Id> encode_behind(std::string_view text) const;

  // The text of ids; those that are no token are left out, and special ones with `skip_special`. Bytes that are not UTF-8
  // become U+FFFD.
  std::string decode(const std::int64_t *ids, std::size_t count, bool skip_special) const;

  // What `decode` has of an id: not there where it is no token, or a special one that is left out.
  struct Piece {
    bool there = false;
    std::string_view text;
  };
  Piece piece(std::int64_t id, bool skip_special) const;

  // See Decoder.
  bool is_byte(std::string_view token) const { return decoder_.is_byte(token); }
  Decoder::Parts parts() const { return decoder_.parts(); }

 private:
  friend class TokenizerReader;

  struct Added {
    std::string text;
    bool special;
  };
  // The model's tokens as they are in the file.
  const Vocabulary &texts() const { return splitter_.of_bytes() ? texts_ : bpe_->vocabulary(); }
  void encode_parts(std::string_view text, Place place, std::vector<Id> &out) const;
  // Returns how many bytes were made for it.
  std::size_t encode_part(std::string_view text, Place place, std::vector<Id> &out) const;

  Normalizer normalizer_;
  Splitter splitter_;
  Decoder decoder_;
  std::unique_ptr<const Bpe> bpe_;
  Vocabulary texts_;  // the model's tokens as they are in the file, where words are of bytes
  std::map<Id, Added> added_;  // not by digests, which a file could make alike
  std::map<std::string, Id, std::less<>> added_ids_;
  AddedTokens plain_, normalized_;  // found in the text as it is, and as the normalizer makes it
  std::vector<Id> before_, behind_;  // what is put around a text
};

}  // namespace edgekit

#endif  // EDGEKIT_TEXT_TOKENIZER_H
