// Text of ids that arrive in pieces.
#ifndef EDGEKIT_TEXT_TEXT_STREAM_H
#define EDGEKIT_TEXT_TEXT_STREAM_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace edgekit {

// A character may be spread over several tokens, and its bytes over two pieces: what ends in U+FFFD is held back until more
// ids arrive or it is finished. Byte tokens (Gemma's kind) are decoded by runs, of which one wrong byte makes every byte
// U+FFFD: the run at the end is held back whole. A decoder that looks at the text of all tokens, as that of no published
// tokenizer does, gives its text at the end. The pieces joined are the text of all ids, with one exception: of a run of more
// than kMostHeldBytes tokens, what is UTF-8 so far is given out, and stays if a later byte of the run is wrong.
class TextStream {
 public:
  // Byte tokens in a row that are held back at most. A word in a script that a vocabulary lacks has 20 to 60.
  static constexpr std::size_t kMostHeldBytes = 64;

  // The tokenizer must outlive it.
  TextStream(const Tokenizer &tokenizer, bool skip_special) : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // Takes more ids. Throws what Tokenizer::decode does, and Error (EK_UNSUPPORTED_BUNDLE) where the text of very many ids
  // hangs together; then it has not taken them.
  void push(const std::int64_t *ids, std::size_t count);

  // No ids follow: nothing is held back any more, what is incomplete stays U+FFFD.
  void finish();

  // What has become certain and was not taken.
  std::string_view certain() const noexcept { return std::string_view(certain_).substr(taken_); }
  // Of it whole characters, of at most so many bytes.
  std::string_view first(std::size_t bytes) const noexcept;
  void take(std::size_t bytes) noexcept;

 private:
  std::size_t certain_end(const std::string &text, std::size_t run) const;
  std::size_t run_at_the_end() const;
  void settle(const std::string &text, std::size_t end);
  bool is_text(std::size_t count) const;
  void forget();
  std::string text() const { return tokenizer_.decode(ids_.data(), ids_.size(), skip_special_); }

  const Tokenizer &tokenizer_;
  const bool skip_special_;
  std::vector<std::int64_t> ids_;  // whose text is not certain yet, and those before them that it hangs on
  std::size_t settled_ = 0;        // bytes of their text
  std::size_t context_ = 0;        // how many of ids_ are kept for what follows to stand behind
  std::size_t taken_ids_ = 0, decoded_ids_ = 0;
  std::string certain_;
  std::size_t taken_ = 0;  // bytes of it
};

}  // namespace edgekit

#endif  // EDGEKIT_TEXT_TEXT_STREAM_H
