// How texts of tokens become the text of an answer.
#ifndef EDGEKIT_TEXT_DECODER_H
#define EDGEKIT_TEXT_DECODER_H

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"

namespace edgekit {

class Decoder {
 public:
  Decoder() = default;

  // Of a tokenizer.json: null, ByteLevel, ByteFallback, Fuse, Replace of a text, Strip, Metaspace, or a Sequence.
  // Throws Error (EK_UNSUPPORTED_BUNDLE, EK_MALFORMED_FILE).
  explicit Decoder(const Json &table);

  // Bytes that are not UTF-8 become U+FFFD. Throws Error (EK_UNSUPPORTED_BUNDLE) where a text becomes longer than any
  // tokenizer makes it.
  std::string decode(std::vector<std::string> tokens) const;

  // What is known of the text of tokens that others follow.
  enum class Parts {
    none,      // nothing: a step looks at the text of all tokens
    behind,    // those behind others, which have a text and end with none that stands for a byte, add the same to it
               // whatever these are
    anywhere,  // it is the text of some of them and, behind it, that of the others, wherever they are parted but within
               // a character or a run of tokens that stand for bytes
  };
  Parts parts() const noexcept { return parts_; }

  // Whether a token stands for one byte, as <0x0A> does.
  bool is_byte(std::string_view token) const;

 private:
  struct Step {
    enum class Kind { byte_level, byte_tokens, fuse, replace, strip, metaspace } kind;
    std::string what, by;
    std::size_t left = 0, right = 0;
  };
  void add(const Json &table);
  // `before`: the bytes of all tokens at the beginning.
  static void apply(const Step &step, std::vector<std::string> &tokens, std::size_t before);

  Parts parts_of_steps() const;

  std::vector<Step> steps_;
  bool joins_with_blanks_ = true;  // what no step joins
  Parts parts_ = Parts::behind;
};

// The bytes that a token of ByteLevel stands for: each of its characters is one. False where one is none.
bool bytes_of_token(std::string_view text, std::string &bytes);

// UTF-8, in which the bytes of each longest beginning of a character that is cut off are U+FFFD, and so is each that
// begins none (Unicode, 3.9: substitution of maximal subparts).
std::string with_replacements(std::string_view bytes);

}  // namespace edgekit

#endif  // EDGEKIT_TEXT_DECODER_H
