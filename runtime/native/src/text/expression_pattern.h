// The syntax of regular expressions, as far as tokenizers use it: a pattern in, a tree of what stands in it out.
#ifndef EDGEKIT_TEXT_EXPRESSION_PATTERN_H
#define EDGEKIT_TEXT_EXPRESSION_PATTERN_H

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/code_points.h"

namespace edgekit {

struct ExpressionNode {
  static constexpr std::size_t kEndless = static_cast<std::size_t>(-1);

  enum class Kind { set, look, sequence, alternatives, repeat } kind;
  std::size_t set = 0;              // of set and look: which of the tree's
  std::vector<std::unique_ptr<ExpressionNode>> parts;  // of sequence and alternatives all, of repeat one
  std::size_t least = 0, most = 0;  // of repeat; most is kEndless where nothing bounds it
  bool greedy = true;               // of repeat
  bool keeps = false;               // of repeat: gives nothing back
  std::size_t at = 0;               // of one that does so: where in the pattern it says so
  bool negative = false;            // of look: what follows may be the end of the text
};

struct ExpressionTree {
  static constexpr std::size_t kMostSets = 64;

  std::unique_ptr<ExpressionNode> root;
  std::vector<CodePoints> sets;  // each once
};

class ExpressionPattern {
 public:
  // Both outlive it. `where` begins messages.
  ExpressionPattern(std::string_view text, const std::string &where) : text_(text), where_(where) {}

  // Throws Error (EK_UNSUPPORTED_BUNDLE) for what is no expression, is too large, or has what this does not know.
  ExpressionTree read() const;

  std::string_view text() const { return text_; }

  [[noreturn]] void unsupported(const std::string &what, std::size_t at) const;
  [[noreturn]] void unsupported_keeping(std::size_t at) const;  // a repetition that gives nothing back
  [[noreturn]] void too_large() const;

 private:
  const std::string_view text_;
  const std::string &where_;
};

}  // namespace edgekit

#endif  // EDGEKIT_TEXT_EXPRESSION_PATTERN_H
