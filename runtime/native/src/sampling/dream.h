// The procedure of Dream: masked tokens, unmasked over the whole answer along a schedule of timesteps.
#ifndef EDGEKIT_SAMPLING_DREAM_H
#define EDGEKIT_SAMPLING_DREAM_H

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sampling/acceptance.h"
#include "sampling/dream_proposal.h"
#include "sampling/masked_canvas.h"
#include "sampling/options.h"
#include "sampling/sampler.h"

namespace edgekit {

// As `generation_utils.py` of the published checkpoints, or acceptance rules in place of its schedule. Blocks and caches are
// those of Fast-dLLM's `generation_utils_block.py`: as the scores are shifted by one, the row before a block predicts its
// first token, so with a cache the pass that begins the block, which computes everything, commits that one and no other. Those
// of dKV-Cache-Decode (arXiv 2505.15781) keep a row once both its token and the one that it predicts are there, which its
// appendix calls Un&Right-Shift.
//
// Tells a draft per step that unmasked something (the whole answer, masks where it is open), committed tokens once, and the
// end.
class DreamSampler : public Sampler {
 public:
  // Throws Error (EK_INVALID_ARGUMENT).
  DreamSampler(SamplerModel model, DreamOptions options);

  void begin(const std::vector<std::int64_t> &prompt, std::uint64_t seed) override;
  std::unique_ptr<Sampler> copy() const override { return std::make_unique<DreamSampler>(*this); }

 protected:
  const char *name() const override { return "dream"; }
  std::string options_text() const override { return text_of(options_); }
  void proceed(HeadResult &&answer) override;
  void proceed_pass(std::vector<HeadResult> &&answers) override { take(std::move(answers.front())); }
  bool hurries() const override { return true; }
  // With the next step that unmasks something.
  void go_on() override;
  void write(StateWriter &state) const override;
  void read(StateReader &state) override;

 private:
  std::int64_t block_start() const { return block_ * options_.max_new_tokens / options_.blocks(); }  // in the answer
  std::int64_t block_stop() const { return block_start() + options_.max_new_tokens / options_.blocks(); }
  std::vector<std::int64_t> open_in_block() const;
  // Of this step; false for none.
  bool find_positions(const std::vector<std::int64_t> &open);
  void ask_proposal();
  void take(HeadResult &&answer);
  // Which of the proposals to take, as indices into them.
  std::vector<std::int64_t> choose(const Proposal &proposal);
  void end_step(const Proposal &proposal);
  void find_end();
  void commit();

  template <typename Archive, typename Self>
  static void fields(Archive &archive, Self &self);

  DreamOptions options_;
  std::vector<float> times_;
  MaskedCanvas canvas_;
  std::vector<std::uint8_t> given_open_, open_;  // positions of the answer: at first, and now
  Streaks streaks_;
  std::optional<std::int64_t> end_;  // of the answer
  std::int64_t block_ = 0, step_ = 0;  // step_: of the block

  // Of the step.
  std::vector<std::int64_t> positions_;  // to propose tokens for
  std::int64_t count_ = 0;               // of them to unmask
  bool settles_ = false;                 // all of them are committed
  bool begins_ = false;                  // with a cache: the block's first one is committed alone
  bool whole_ = false;                   // with a cache: the whole canvas is computed
  std::optional<DreamProposal> proposal_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_DREAM_H
