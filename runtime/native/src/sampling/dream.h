// The procedure of Dream: masked tokens, unmasked over the whole answer along a schedule of timesteps.
#ifndef EDGEKIT_SAMPLING_DREAM_H
#define EDGEKIT_SAMPLING_DREAM_H

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sampling/dream_proposal.h"
#include "sampling/masked_canvas.h"
#include "sampling/options.h"
#include "sampling/sampler.h"

namespace edgekit {

// As `generation_utils.py` of the published checkpoints. Tells a draft per step that unmasked something (the whole
// answer, masks where it is open), committed tokens once, and the end.
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
  // With the next step that unmasks something.
  void go_on() override;
  void write(StateWriter &state) const override;
  void read(StateReader &state) override;

 private:
  bool find_positions(const std::vector<std::int64_t> &open);  // of this step; false for none
  void take(HeadResult &&answer);
  void end_step(const Proposal &proposal);
  void find_end();
  void commit();

  template <typename Archive, typename Self>
  static void fields(Archive &archive, Self &self);

  DreamOptions options_;
  std::vector<float> times_;
  MaskedCanvas canvas_;
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
