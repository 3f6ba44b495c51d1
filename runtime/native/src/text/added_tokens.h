// Tokens that are found in a text before it is split: those of roles, turns and ends.
#ifndef EDGEKIT_TEXT_ADDED_TOKENS_H
#define EDGEKIT_TEXT_ADDED_TOKENS_H

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/vocabulary.h"

namespace edgekit {

class AddedTokens {
 public:
  using Id = Vocabulary::Id;

  // A token takes in the blanks on its left or right, where it says so.
  void add(std::string_view text, Id id, bool takes_left, bool takes_right);

  struct Part {
    std::string_view text;
    Id id;  // kNone: what is no token
  };
  // The parts of `text`, none of them empty. Of tokens that begin at one place the longest is taken.
  std::vector<Part> split(std::string_view text) const;

 private:
  // A node of the tree of all texts, whose children hang together.
  struct Node {
    unsigned char byte = 0;
    std::uint32_t child = 0, sibling = 0;  // 0: none, for nothing leads to the root
    std::int32_t token = -1;
  };
  struct Token {
    Id id;
    bool takes_left, takes_right;
  };
  std::uint32_t child(std::uint32_t node, char byte) const noexcept;

  std::vector<Node> nodes_{1};
  std::vector<Token> tokens_;
};

}  // namespace edgekit

#endif  // EDGEKIT_TEXT_ADDED_TOKENS_H
