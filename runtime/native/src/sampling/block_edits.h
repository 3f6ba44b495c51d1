// Editing within a block: tokens that replace others, DELETE and INSERT (LLaDA2.1 and 2.2).
#ifndef EDGEKIT_SAMPLING_BLOCK_EDITS_H
#define EDGEKIT_SAMPLING_BLOCK_EDITS_H

#include <cstdint>
#include <vector>

#include "kernels/head.h"
#include "sampling/options.h"
#include "sampling/saved_state.h"

namespace edgekit {

// The tokens of a block, and which of its positions are open.
struct BlockTokens {
  std::vector<std::int64_t> tokens;
  std::vector<std::uint8_t> open;
};

// As `generate` of the checkpoints' modeling_llada2_moe.py: joint threshold decoding of 2.1, and `_joint_decode_block` of 2.2,
// where the options have the two tokens. Where that goes round in circles it changes a position at random; here it is the
// least confident one. A block that max_block_steps bounds ends with a step that fills whatever is open.
class BlockEdits {
 public:
  BlockEdits() = default;
  // For a block whose open positions are these.
  explicit BlockEdits(const std::vector<std::uint8_t> &open);

  // Whether the block is done without another pass, behind `step` of them.
  bool done(const std::vector<std::uint8_t> &open, std::int64_t step, const BlockOptions &options) const;

  // Scores of every row that a step needs: for the tokens that are not forbidden.
  static std::int64_t top_k(const BlockOptions &options) { return options.delete_token_id ? 3 : 0; }

  struct Outcome {
    std::vector<std::uint8_t> written;  // by position, before DELETE and INSERT are followed
    bool done = false;                  // the pass saw the finished block
  };
  // A step: `answer` has a row for each position from `given` on. Changes `block`.
  Outcome apply(const HeadResult &answer, std::int64_t given, std::int64_t step, const BlockOptions &options,
                BlockTokens &block);

  template <typename Archive, typename Self>
  static void fields(Archive &archive, Self &self, std::int64_t length, std::int64_t vocabulary);
  void write(StateWriter &state, std::int64_t length, std::int64_t vocabulary) const;
  void read(StateReader &state, std::int64_t length, std::int64_t vocabulary);

 private:
  std::int64_t post_now(const std::vector<std::uint8_t> &open) const;

  std::vector<std::uint8_t> original_;  // open when the block began; moves with its position
  std::int64_t initial_ = 0;            // how many these were
  std::int64_t post_ = 0;               // steps behind which none of them was open
  std::vector<std::vector<std::int64_t>> seen_;  // what the block was
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_BLOCK_EDITS_H
