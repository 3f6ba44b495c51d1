#include "text/text_stream.h"

#include <string_view>

namespace edgekit {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr std::size_t kNoRun = SIZE_MAX;

}  // namespace

void TextStream::push(const std::int64_t *ids, std::size_t count) {
  const std::size_t before = ids_.size();
  ids_.insert(ids_.end(), ids, ids + count);
  try {
    const std::string all = text();
    settle(all, certain_end(all));
  } catch (...) {
    ids_.resize(before);
    throw;
  }
}

void TextStream::finish() {
  const std::string all = text();
  settle(all, all.size());
}

std::string_view TextStream::first(std::size_t bytes) const noexcept {
  const std::string_view all = certain();
  if (bytes >= all.size()) return all;
  const auto within = [&all](std::size_t at) { return (static_cast<unsigned char>(all[at]) & 0xC0) == 0x80; };
  while (bytes > 0 && within(bytes)) --bytes;
  return all.substr(0, bytes);
}

void TextStream::take(std::size_t bytes) noexcept {
  taken_ += bytes;
  if (taken_ < certain_.size()) return;
  certain_.clear();
  taken_ = 0;
}

// Where what is certain of `text`, that of ids_, ends.
std::size_t TextStream::certain_end(const std::string &text) const {
  const std::size_t run = run_at_the_end();
  if (run != kNoRun) return tokenizer_.decode(ids_.data(), run, skip_special_).size();
  std::string_view rest = text;
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
  if (end > settled_) {
    certain_.append(text, settled_, end - settled_);
    settled_ = end;
  }
  if (settled_ == text.size() && tokenizer_.decodes_in_parts()) {
    ids_.clear();
    settled_ = 0;
  }
}

}  // namespace edgekit
