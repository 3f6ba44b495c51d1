#include "text/expression_pattern.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "error.h"
#include "text/unicode.h"
#include "utf8.h"

namespace edgekit {
namespace {

constexpr std::size_t kMostPattern = 4096;
constexpr int kMostDepth = 50;
constexpr std::size_t kMostRepeats = 1000;

using Node = ExpressionNode;
using NodePtr = std::unique_ptr<Node>;

class Reader {
 public:
  explicit Reader(const ExpressionPattern &pattern) : pattern_(pattern), text_(pattern.text()) {}

  ExpressionTree read() {
    if (text_.size() > kMostPattern) pattern_.too_large();
    if (utf8_prefix(text_) != text_.size()) pattern_.unsupported("bytes that are not UTF-8", at_);
    tree_.root = alternatives(0);
    if (at_ != text_.size()) pattern_.unsupported("a closing bracket without an opening one", at_);
    return std::move(tree_);
  }

 private:
  bool more() const { return at_ < text_.size(); }
  char peek() const { return more() ? text_[at_] : '\0'; }
  bool accept(std::string_view text) {
    if (text_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }

  static NodePtr make(Node::Kind kind) {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    return node;
  }

  NodePtr set_node(const CodePoints &set, Node::Kind kind = Node::Kind::set) {
    auto node = make(kind);
    const auto found = std::find(tree_.sets.begin(), tree_.sets.end(), set);
    node->set = static_cast<std::size_t>(found - tree_.sets.begin());
    if (found == tree_.sets.end()) tree_.sets.push_back(set);
    if (tree_.sets.size() > ExpressionTree::kMostSets) pattern_.too_large();
    return node;
  }

  NodePtr alternatives(int depth) {
    if (depth > kMostDepth) pattern_.too_large();
    auto node = make(Node::Kind::alternatives);
    do {
      node->parts.push_back(sequence(depth));
    } while (accept("|"));
    return node;
  }

  NodePtr sequence(int depth) {
    auto node = make(Node::Kind::sequence);
    while (more() && peek() != '|' && peek() != ')') {
      const std::size_t begin = at_;
      node->parts.push_back(repeated(atom(depth)));
      if (ignoring_case_) check_letters(begin);
    }
    return node;
  }

  // Two letters may be one character in another case, as ss is.
  void check_letters(std::size_t begin) const {
    if (begin == 0 || at_ != begin + 1) return;
    std::string both(text_.substr(begin - 1, 2));
    for (char &letter : both) letter = static_cast<char>(letter | 0x20);
    for (const char *pair : {"ss", "st", "ff", "fi", "fl"}) {
      if (both == pair) pattern_.unsupported("letters that are one character in another case", begin - 1);
    }
  }

  NodePtr atom(int depth) {
    const std::size_t begin = at_;
    if (accept("(?:")) return group(depth, ignoring_case_);
    if (accept("(?i:")) return group(depth, true);
    if (accept("(?!") || accept("(?=")) {
      const bool negative = text_[begin + 2] == '!';
      const NodePtr next = atom(depth + 1);
      if (!accept(")") || next->kind != Node::Kind::set) pattern_.unsupported("a look at more than one character", begin);
      const CodePoints set = tree_.sets[next->set];
      auto node = set_node(negative ? set.inverse() : set, Node::Kind::look);
      node->negative = negative;
      return node;
    }
    if (!more()) pattern_.unsupported("an end where something is to stand", begin);
    if (peek() == '(') pattern_.unsupported("a group of this kind", begin);
    if (accept("[")) return set_node(bracket(depth));
    if (accept(".")) return set_node(CodePoints::of('\n', '\n').inverse());
    if (peek() == '\\') return set_node(escape(false));
    if (std::string_view("*+?{^$").find(peek()) != std::string_view::npos) pattern_.unsupported("a sign", begin);
    return set_node(either_case(next_code_point(text_, at_)));
  }

  NodePtr group(int depth, bool ignoring_case) {
    const bool before = ignoring_case_;
    ignoring_case_ = ignoring_case;
    NodePtr node = alternatives(depth + 1);
    ignoring_case_ = before;
    if (!accept(")")) pattern_.unsupported("a group without an end", at_);
    return node;
  }

  // A character, in both cases where case is to be ignored.
  CodePoints either_case(std::uint32_t code_point) const {
    CodePoints found = CodePoints::of(code_point, code_point);
    if (!ignoring_case_) return found;
    if (code_point >= 0x80) pattern_.unsupported("a character beyond ASCII whose case is to be ignored", at_);
    const std::uint32_t small = code_point | 0x20;
    if (small < 'a' || small > 'z') return found;
    found.add(CodePoints::of(small, small));
    found.add(CodePoints::of(small - 0x20, small - 0x20));
    if (small == 's') found.add(CodePoints::of(0x17F, 0x17F));    // the long s
    if (small == 'k') found.add(CodePoints::of(0x212A, 0x212A));  // the sign of the kelvin
    return found;
  }

  CodePoints escape(bool in_set) {
    const std::size_t begin = at_;
    ++at_;
    if (!more()) pattern_.unsupported("a backslash without a character", begin);
    const std::uint32_t code_point = next_code_point(text_, at_);
    switch (code_point) {
      case 's':
        return CodePoints::space();
      case 'S':
        return CodePoints::space().inverse();
      case 'd':
        return CodePoints::digit();
      case 'D':
        return CodePoints::digit().inverse();
      case 'w':
        return CodePoints::word(in_set);
      case 'W':
        return CodePoints::word(in_set).inverse();
      case 'n':
        return CodePoints::of('\n', '\n');
      case 'r':
        return CodePoints::of('\r', '\r');
      case 't':
        return CodePoints::of('\t', '\t');
      case 'f':
        return CodePoints::of('\f', '\f');
      case 'v':
        return CodePoints::of('\v', '\v');
      case 'p':
      case 'P':
        return property(code_point == 'P', begin);
      case 'x':
        return hexadecimal(begin);
      default:
        break;
    }
    if (code_point >= 0x80 || std::string_view("\\^$.|?*+()[]{}-/'\"#&~ !,:;<=>@_`%").find(
                                  static_cast<char>(code_point)) == std::string_view::npos) {
      pattern_.unsupported("an escape", begin);
    }
    return either_case(code_point);
  }

  CodePoints property(bool negative, std::size_t begin) {
    std::string_view name;
    if (accept("{")) {
      if (accept("^")) negative = !negative;
      const std::size_t end = text_.find('}', at_);
      if (end == std::string_view::npos) pattern_.unsupported("a property without an end", begin);
      name = text_.substr(at_, end - at_);
      at_ = end + 1;
    } else {
      name = text_.substr(at_, 1);
      at_ += name.size();
    }
    CodePoints found;
    if (!CodePoints::find_category(name, found)) pattern_.unsupported("a property", begin);
    return negative ? found.inverse() : found;
  }

  CodePoints hexadecimal(std::size_t begin) {
    const bool bracketed = accept("{");
    std::uint32_t value = 0;
    std::size_t digits = 0;
    while (more() && digits < (bracketed ? 6u : 2u)) {
      const char letter = peek();
      const char small = static_cast<char>(letter | 0x20);
      if (letter >= '0' && letter <= '9') {
        value = value << 4 | static_cast<std::uint32_t>(letter - '0');
      } else if (small >= 'a' && small <= 'f') {
        value = value << 4 | static_cast<std::uint32_t>(small - 'a' + 10);
      } else {
        break;
      }
      ++at_;
      ++digits;
    }
    // Two digits beyond ASCII are a byte to Oniguruma.
    if (digits == 0 || value >= kCodePoints || (bracketed ? !accept("}") : value >= 0x80)) {
      pattern_.unsupported("an escape", begin);
    }
    return either_case(value);
  }

  // Behind the opening bracket.
  CodePoints bracket(int depth) {
    if (depth > kMostDepth) pattern_.too_large();
    const std::size_t begin = at_ - 1;
    const bool negative = accept("^");
    CodePoints found, left;  // `left` is the set in front of &&
    bool narrowed = false, empty = true;
    while (true) {
      if (!more()) pattern_.unsupported("a set without an end", begin);
      if (!empty && accept("]")) break;
      if (accept("&&")) {
        left = narrowed ? left.both(found) : found;
        narrowed = true;
        found = CodePoints();
        continue;
      }
      if (peek() == ']' || text_.substr(at_, 2) == "[:") pattern_.unsupported("a set of this kind", begin);
      empty = false;
      if (accept("[")) {
        found.add(bracket(depth + 1));
        continue;
      }
      const std::size_t first_at = at_;
      std::optional<std::uint32_t> first;
      found.add(member(first));
      if (peek() != '-' || text_.substr(at_, 2) == "-]") continue;
      ++at_;
      std::optional<std::uint32_t> last;
      member(last);
      if (!first || !last || *first > *last) pattern_.unsupported("a range", first_at);
      if (ignoring_case_) pattern_.unsupported("a range whose case is to be ignored", first_at);
      found.add(CodePoints::of(*first, *last));
    }
    if (narrowed) found = left.both(found);
    return negative ? found.inverse() : found;
  }

  // One of a set; `single` is the character where it is one.
  CodePoints member(std::optional<std::uint32_t> &single) {
    if (!more()) pattern_.unsupported("a set without an end", at_);
    if (peek() == '\\') {
      const CodePoints found = escape(true);
      if (found.ranges().size() == 1 && found.ranges()[0].first == found.ranges()[0].last) {
        single = found.ranges()[0].first;
      }
      return found;
    }
    single = next_code_point(text_, at_);
    return either_case(*single);
  }

  NodePtr repeated(NodePtr node) {
    for (bool again = false;; again = true) {
      const std::size_t begin = at_;
      std::size_t least = 0, most = Node::kEndless;
      bool bounded = false;
      if (accept("*")) {
      } else if (accept("+")) {
        least = 1;
      } else if (accept("?")) {
        most = 1;
      } else if (accept("{")) {
        bounds(least, most, begin);
        bounded = true;
      } else {
        return node;
      }
      if (again || node->kind == Node::Kind::look) pattern_.unsupported("a repetition of this kind", begin);
      auto whole = make(Node::Kind::repeat);
      whole->least = least;
      whole->most = most;
      whole->parts.push_back(std::move(node));
      if (accept("+")) {
        if (bounded || whole->parts.front()->kind != Node::Kind::set) pattern_.unsupported_keeping(begin);
        whole->keeps = true;
        whole->at = begin;
      } else {
        whole->greedy = !accept("?");
      }
      node = std::move(whole);
    }
  }

  void bounds(std::size_t &least, std::size_t &most, std::size_t begin) {
    const auto number = [this](std::size_t &out) {
      const std::size_t start = at_;
      for (out = 0; peek() >= '0' && peek() <= '9' && out <= kMostRepeats; ++at_) {
        out = out * 10 + static_cast<std::size_t>(peek() - '0');
      }
      return at_ > start;
    };
    const bool has_least = number(least);
    most = least;
    if (accept(",") && !number(most)) most = Node::kEndless;
    if (!accept("}") || (!has_least && most == Node::kEndless) || (most != Node::kEndless && most < least)) {
      pattern_.unsupported("a repetition of this kind", begin);
    }
    if (least > kMostRepeats || (most != Node::kEndless && most > kMostRepeats)) pattern_.too_large();
  }

  const ExpressionPattern &pattern_;
  const std::string_view text_;
  std::size_t at_ = 0;
  bool ignoring_case_ = false;
  ExpressionTree tree_;
};

}  // namespace

ExpressionTree ExpressionPattern::read() const { return Reader(*this).read(); }

void ExpressionPattern::unsupported(const std::string &what, std::size_t at) const {
  fail(EK_UNSUPPORTED_BUNDLE, where_, ": the expression ", in_quotes(text_), " has ", what, " at byte ", at,
       ", which this library does not know; it splits text with simple expressions only");
}

void ExpressionPattern::unsupported_keeping(std::size_t at) const {
  unsupported("a repetition that gives nothing back", at);
}

void ExpressionPattern::too_large() const {
  fail(EK_UNSUPPORTED_BUNDLE, where_, ": the expression ", in_quotes(text_),
       " is larger than any that tokenizers split text with");
}

}  // namespace edgekit
