#include "text/added_tokens.h"

#include <algorithm>

#include "error.h"
#include "text/code_points.h"
#include "utf8.h"

namespace edgekit {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 22;  // published tokenizers have 80 kB of them
// How many nodes may be looked at for a byte of the text, and without regard to its length.
constexpr std::size_t kMostLooks = 256, kFreeLooks = std::size_t{1} << 16;

// How many bytes of blanks `text` ends with, or begins with.
std::size_t blanks_at_end(std::string_view text) {
  static const CodePoints kSpace = CodePoints::space();
  std::size_t end = text.size();
  while (end > 0) {
    std::size_t begin = end - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    std::size_t at = begin;
    if (!kSpace.holds(next_code_point(text, at))) break;
    end = begin;
  }
  return text.size() - end;
}

std::size_t blanks_at_begin(std::string_view text) {
  static const CodePoints kSpace = CodePoints::space();
  for (std::size_t at = 0;;) {
    const std::size_t begin = at;
    if (at >= text.size() || !kSpace.holds(next_code_point(text, at))) return begin;
  }
}

}  // namespace

std::uint32_t AddedTokens::child(std::uint32_t node, char byte, std::size_t &looked) const noexcept {
  ++looked;
  if (node == 0) return first_[static_cast<unsigned char>(byte)];
  std::uint32_t found = nodes_[node].child;
  for (; found != 0 && nodes_[found].byte != static_cast<unsigned char>(byte); ++looked) found = nodes_[found].sibling;
  return found;
}

void AddedTokens::add(std::string_view text, Id id, bool takes_left, bool takes_right) {
  if (text.empty()) return;
  bytes_ += text.size();
  if (bytes_ > kMostBytes) {
    fail(EK_UNSUPPORTED_BUNDLE, "tokenizer.json: its added tokens have more than ", kMostBytes,
         " bytes, as those of no tokenizer; download it again");
  }
  takes_right_ = takes_right_ || takes_right;
  blanks_take_left_ = blanks_take_left_ || (takes_left && blanks_at_begin(text) == text.size());
  if (takes_right_ && blanks_take_left_) {
    fail(EK_UNSUPPORTED_BUNDLE, "tokenizer.json: one of its added tokens takes in the blanks behind it, another is of blanks and "
         "takes in those in front, which this library does not know; encode its texts elsewhere, and give the ids");
  }
  std::uint32_t node = 0;
  std::size_t looked = 0;
  for (const char byte : text) {
    std::uint32_t next = child(node, byte, looked);
    if (next == 0) {
      next = static_cast<std::uint32_t>(nodes_.size());
      nodes_.push_back({static_cast<unsigned char>(byte), 0, nodes_[node].child, -1});
      (node == 0 ? first_[static_cast<unsigned char>(byte)] : nodes_[node].child) = next;
    }
    node = next;
  }
  if (nodes_[node].token < 0) {
    nodes_[node].token = static_cast<std::int32_t>(tokens_.size());
    tokens_.push_back({id, takes_left, takes_right});
  }
}

std::vector<AddedTokens::Part> AddedTokens::split(std::string_view text) const {
  std::vector<Part> found;
  std::size_t done = 0, looked = 0;
  std::size_t blanks = 0;  // where those end that were looked at last: they are not gone through again
  for (std::size_t at = 0; at < text.size();) {
    std::int32_t token = -1;
    std::size_t end = at;
    std::uint32_t node = 0;
    for (std::size_t next = at; next < text.size() && (node = child(node, text[next], looked)) != 0;) {
      ++next;
      if (nodes_[node].token >= 0) {
        token = nodes_[node].token;
        end = next;
      }
    }
    if (looked > kFreeLooks + kMostLooks * text.size()) {
      fail(EK_UNSUPPORTED_BUNDLE, "tokenizer.json: looking for its added tokens takes too long on this text");
    }
    if (token < 0) {
      ++at;
      continue;
    }
    const Token &taken = tokens_[static_cast<std::size_t>(token)];
    std::size_t begin = std::max(at, done), stop = end;
    if (taken.takes_left) begin -= blanks_at_end(text.substr(done, begin - done));
    if (taken.takes_right) {
      if (end > blanks) blanks = end + blanks_at_begin(text.substr(end));
      stop = blanks;
    }
    if (begin > done) found.push_back({text.substr(done, begin - done), Vocabulary::kNone});
    found.push_back({text.substr(at, end - at), taken.id});
    done = stop;
    at = end;
  }
  if (done < text.size()) found.push_back({text.substr(done), Vocabulary::kNone});
  return found;
}

}  // namespace edgekit
