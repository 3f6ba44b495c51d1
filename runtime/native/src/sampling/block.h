// The procedure of families that decode block by block behind a prefix: LLaDA2, SDAR, Fast_dLLM v2, Nemotron-Labs-Diffusion.
#ifndef EDGEKIT_SAMPLING_BLOCK_H
#define EDGEKIT_SAMPLING_BLOCK_H

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sampling/block_edits.h"
#include "sampling/options.h"
#include "sampling/sampler.h"
#include "sampling/token_draw.h"

namespace edgekit {

// A block begins as masks behind what is encoded; the end of the prompt that fills no block of its own stands before them.
// Its first token is the last block's next one where the scores are shifted, or the option causal_start wants it so.
// Every step commits the open positions whose confidence is above the threshold, or its share of them. With an editing
// threshold committed tokens of the block are replaced as well, taken away or put in between. A finished block is encoded,
// and its keys and values are never computed again: in the pass that begins the next block, or from the last pass on it
// where that saw the finished block.
//
// A position counts as open until it is committed, even if the model predicts the mask token itself for it.
//
// Tells a draft per step (the block, masks where it is open), committed tokens per block and the end.
class BlockSampler : public Sampler {
 public:
  // Throws Error (EK_INVALID_ARGUMENT).
  BlockSampler(SamplerModel model, BlockOptions options);

  void begin(const std::vector<std::int64_t> &prompt, std::uint64_t seed) override;
  std::unique_ptr<Sampler> copy() const override { return std::make_unique<BlockSampler>(*this); }

 protected:
  const char *name() const override { return "block"; }
  std::string options_text() const override { return text_of(options_); }
  void proceed(HeadResult &&answer) override;
  void proceed_pass(std::vector<HeadResult> &&answers) override;
  // Ends with the block at hand, whose last pass settles all of it.
  bool hurries() const override { return true; }
  void go_on() override;
  void write(StateWriter &state) const override;
  void read(StateReader &state) override;
  void ask_waiting() override;

 private:
  // What go_on() does: encodes the text before the block for the token that it begins with, a step, or the end of the block.
  enum class Stage : std::int64_t { seed = 0, step = 1, commit = 2 };

  bool seeds() const { return model().shift_logits || options_.causal_start; }
  std::int64_t whole_blocks() const;
  void encode_or_begin();
  void begin_block();
  void ask_seed();
  void begin_step();
  void end_step(HeadResult &&answer);
  std::vector<std::uint8_t> chosen(const HeadResult &answer);
  void find_end();
  void commit();
  bool any_open(std::int64_t stop) const;
  bool is_settled() const;
  bool is_last() const;

  template <typename Archive, typename Self>
  static void fields(Archive &archive, Self &self);

  BlockOptions options_;
  std::vector<std::int64_t> waiting_;  // final text that is not encoded: a finished block, or the end of the prompt
  std::int64_t told_ = 0;              // tokens of the answer that are committed
  bool ended_ = false;                 // an end token was committed

  // Of the block.
  Stage stage_ = Stage::step;
  std::int64_t start_ = 0, block_ = 0, step_ = 0;  // start_: position of its first token
  std::int64_t given_ = 0;  // tokens of the prompt that stand at its front
  BlockTokens tokens_;
  std::optional<std::int64_t> end_;  // of the answer within it
  BlockEdits edits_;
  TokenDraw draw_;

  std::vector<std::int64_t> positions_;  // of the block, that the step asks for
  bool settles_ = false;                 // all of it is committed
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_BLOCK_H
