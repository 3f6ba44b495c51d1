// Tokens that are found in a text before it is split: those of roles, turns and ends.
#ifndef EDGEKIT_TEXT_ADDED_TOKENS_H
#define EDGEKIT_TEXT_ADDED_TOKENS_H

#include <array>
#include <cstddef>
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

  // A token takes in the blanks on its left or right, where it says so. Throws Error (EK_UNSUPPORTED_BUNDLE) where all
  // texts together are longer than those of any tokenizer, and where one of blanks may be taken in as a whole.
  void add(std::string_view text, Id id, bool takes_left, bool takes_right);

  struct Part {
    std::string_view text;
    Id id;  // kNone: what is no token
  };
  // The parts of `text`. Of tokens that begin at one place the longest is taken. Throws Error (EK_UNSUPPORTED_BUNDLE) where
  // looking for them takes much longer than the text is: tokens that often almost are there.
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
  // `looked` counts the nodes that were looked at.
  std::uint32_t child(std::uint32_t node, char byte, std::size_t &looked) const noexcept;

  std::vector<Node> nodes_{1};
  std::array<std::uint32_t, 256> first_{};  // children of the root
  std::vector<Token> tokens_;
  std::size_t bytes_ = 0;  // of all texts
  bool takes_right_ = false, blanks_take_left_ = false;  // some token does, and one of blanks alone
};

}  // namespace edgekit

#endif  // EDGEKIT_TEXT_ADDED_TOKENS_H
