#include "text/text_stream.h"

#include <algorithm>
#include <string_view>

#include "error.h"

namespace edgekit {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr std::size_t kNoRun = SIZE_MAX;
// How many ids may be decoded for each that is taken, and without regard to their number.
constexpr std::size_t kMostDecoded = 64, kFreeDecoded = std::size_t{1} << 24;

bool within_character(std::string_view text, std::size_t at) {
  return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
}

}  // namespace

void TextStream::push(const std::int64_t *ids, std::size_t count) {
  const std::size_t before = ids_.size();
  ids_.insert(ids_.end(), ids, ids + count);
  if (tokenizer_.parts() == Decoder::Parts::none) return;
  try {
    if (decoded_ids_ + ids_.size() > kFreeDecoded + kMostDecoded * (taken_ids_ + count)) {
      fail(EK_UNSUPPORTED_BUNDLE, "tokenizer.json: its decoder looks at all ", ids_.size(),
           " ids again for each that follows; decode them together");
    }
    decoded_ids_ += ids_.size();
    const std::string all = text();
    const std::size_t run = run_at_the_end();
    settle(all, certain_end(all, run));
    // A run whose text is empty so far has another one with the next byte.
    if (run == kNoRun && settled_ == all.size()) forget();
  } catch (...) {
    ids_.resize(before);
    throw;
  }
  taken_ids_ += count;
}

void TextStream::finish() {
  const std::string all = text();
  settle(all, all.size());
  forget();
}

std::string_view TextStream::first(std::size_t bytes) const noexcept {
  const std::string_view all = certain();
  if (bytes >= all.size()) return all;
  while (bytes > 0 && within_character(all, bytes)) --bytes;
  return all.substr(0, bytes);
}

void TextStream::take(std::size_t bytes) noexcept {
  taken_ += bytes;
  if (taken_ < certain_.size()) return;
  certain_.clear();
  taken_ = 0;
}

// Where what is certain of `text`, that of ids_, ends. `run` is as run_at_the_end says.
std::size_t TextStream::certain_end(const std::string &text, std::size_t run) const {
  std::string_view rest = text;
  if (run != kNoRun) rest = rest.substr(0, tokenizer_.decode(ids_.data(), run, skip_special_).size());
  while (rest.size() >= kReplacement.size() && rest.substr(rest.size() - kReplacement.size()) == kReplacement) {
    rest.remove_suffix(kReplacement.size());
  }
  return rest.size();
}

// Where the byte tokens at the end begin; kNoRun if there are none, or too many. Ids without a text do not end a run.
std::size_t TextStream::run_at_the_end() const {
  std::size_t begin = kNoRun, count = 0;
  for (std::size_t i = ids_.size(); i-- > 0;) {
    const Tokenizer::Piece piece = tokenizer_.piece(ids_[i], skip_special_);
    if (!piece.there) continue;
    if (!tokenizer_.is_byte(piece.text)) break;
    begin = i;
    if (++count > kMostHeldBytes) return kNoRun;
  }
  return begin;
}

void TextStream::settle(const std::string &text, std::size_t end) {
  // A long run that is wrong, perhaps for as long as a character of it is not whole, has its characters at other places,
  // and so has what follows ids that were the last.
  std::size_t begin = settled_;
  while (within_character(text, end)) --end;
  while (within_character(text, begin)) ++begin;
  if (end > begin) {
    certain_.append(text, begin, end - begin);
    settled_ = end;
  }
}

// Whether the first `count` ids have a text that others may stand behind.
bool TextStream::is_text(std::size_t count) const {
  const Tokenizer::Piece last = tokenizer_.piece(ids_[count - 1], skip_special_);
  return last.there && !tokenizer_.is_byte(last.text) && !tokenizer_.decode(ids_.data(), count, skip_special_).empty();
}

// Leaves ids out that what follows does not hang on.
void TextStream::forget() {
  if (tokenizer_.parts() == Decoder::Parts::anywhere) {
    ids_.clear();
    settled_ = 0;
    return;
  }
  if (tokenizer_.parts() == Decoder::Parts::none) return;
  for (std::size_t count = 1; context_ == 0 && count <= ids_.size(); count *= 2) {
    if (is_text(count)) context_ = count;
  }
  if (context_ == 0 || context_ == ids_.size()) return;
  settled_ = tokenizer_.decode(ids_.data(), context_, skip_special_).size();
  ids_.resize(context_);
}

}  // namespace edgekit
