// The procedure of Dream: masked tokens, unmasked over the whole answer along a schedule of timesteps.
#ifndef EDGEKIT_SAMPLING_DREAM_H
#define EDGEKIT_SAMPLING_DREAM_H

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sampling/draws.h"
#include "sampling/dream_proposal.h"
#include "sampling/options.h"
#include "sampling/sampler.h"

namespace edgekit {

// As `generation_utils.py` of the published checkpoints. Tells a draft per step that unmasked something (the whole
// answer, masks where it is open), committed tokens once, and the end.
class DreamSampler : public Sampler {
 public:
  // Throws Error (EK_INVALID_ARGUMENT).
  DreamSampler(SamplerModel model, const std::vector<std::int64_t> &prompt, DreamOptions options, std::uint64_t seed);

  std::unique_ptr<Sampler> copy() const override { return std::make_unique<DreamSampler>(*this); }

 protected:
  void proceed(HeadResult &&answer) override;

 private:
  // Asks for the next step that unmasks something, or commits.
  void begin_step();
  bool is_open() const { return std::find(open_.begin(), open_.end(), 1) != open_.end(); }
  bool find_positions();  // of this step; false for none
  void take(HeadResult &&answer);
  void end_step(const Proposal &proposal);
  void commit();

  std::int64_t *answer() { return ids_.data() + prompt_; }

  DreamOptions options_;
  Draws draws_;
  std::int64_t prompt_;
  std::vector<float> times_;
  std::vector<std::int64_t> ids_;  // prompt and answer
  std::vector<std::uint8_t> open_;
  std::optional<std::int64_t> end_;  // of the answer
  std::int64_t step_ = 0;

  // Of the step.
  std::vector<std::int64_t> positions_;  // to propose tokens for
  std::int64_t count_ = 0;               // of them to unmask
  std::optional<DreamProposal> proposal_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_DREAM_H
