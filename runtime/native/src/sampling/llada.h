// The procedure of LLaDA: masked tokens, unmasked by confidence, block after block from left to right.
#ifndef EDGEKIT_SAMPLING_LLADA_H
#define EDGEKIT_SAMPLING_LLADA_H

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sampling/acceptance.h"
#include "sampling/llada_scores.h"
#include "sampling/masked_canvas.h"
#include "sampling/options.h"
#include "sampling/proposal.h"
#include "sampling/sampler.h"

namespace edgekit {

// Low-confidence remasking as in the authors' `generate.py`, and acceptance rules in place of its schedule, of which
// threshold and factor are those of Fast-dLLM, as are two caches: the pass that begins a block keeps keys and values of the
// whole canvas, and later ones compute the block alone, or what is behind it too. The third is dKV-Cache-Decode (arXiv
// 2505.15781, equation 4), within a block as in the authors' script. A position counts as open until it is committed, even if
// the model predicts the mask token itself for it, so every step makes progress.
//
// Tells a draft per step (the whole answer, masks where it is open), committed tokens per block and the end.
class LladaSampler : public Sampler {
 public:
  // Throws Error (EK_INVALID_ARGUMENT).
  LladaSampler(SamplerModel model, LladaOptions options);

  void begin(const std::vector<std::int64_t> &prompt, std::uint64_t seed) override;
  std::unique_ptr<Sampler> copy() const override { return std::make_unique<LladaSampler>(*this); }

 protected:
  const char *name() const override { return "llada"; }
  std::string options_text() const override { return text_of(options_); }
  void proceed(HeadResult &&answer) override;
  void proceed_pass(std::vector<HeadResult> &&answers) override { take(std::move(answers.front())); }
  bool hurries() const override { return true; }
  void go_on() override;
  void write(StateWriter &state) const override;
  void read(StateReader &state) override;

 private:
  void begin_block();
  void begin_step();
  void take(HeadResult &&answer);
  void ask_scores();
  void end_step(Proposal proposal);
  void trim(const Proposal &proposal);
  void find_end();
  void commit();

  std::int64_t block_start() const { return block_ * options_.block_length; }  // in the answer
  bool is_block_open() const;
  // The canvas without what was dropped.
  std::vector<std::int64_t> shown() const;
  // Which of the proposals to commit, as indices into them.
  std::vector<std::int64_t> choose(const Proposal &proposal);

  template <typename Archive, typename Self>
  static void fields(Archive &archive, Self &self);

  LladaOptions options_;
  std::vector<std::int64_t> end_ids_;
  MaskedCanvas canvas_;
  std::vector<std::uint8_t> given_open_, open_;  // positions of the answer: at first, and now
  std::int64_t ends_from_ = 0;                   // where end tokens begin to count
  std::int64_t stop_ = 0;                        // positions of the answer that are not dropped, whole blocks
  bool ended_ = false;                           // an end token was committed
  Streaks streaks_;                              // of the answer

  // Of the block.
  std::int64_t block_ = 0, step_ = 0;
  std::optional<std::int64_t> end_;  // of the answer within it

  // Of the step.
  std::vector<std::int64_t> positions_;  // that are open: those of the block, then others that are looked at
  bool settles_ = false;                 // all of them are committed
  std::optional<GumbelDraw> gumbel_;
  std::optional<LladaScores> scores_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_LLADA_H
