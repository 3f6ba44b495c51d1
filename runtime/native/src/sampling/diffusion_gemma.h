// The procedure of DiffusionGemma: entropy-bounded acceptance over a canvas of random tokens.
#ifndef EDGEKIT_SAMPLING_DIFFUSION_GEMMA_H
#define EDGEKIT_SAMPLING_DIFFUSION_GEMMA_H

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "sampling/options.h"
#include "sampling/sampler.h"

namespace edgekit {

// A canvas starts as uniformly random tokens. Every step the model predicts all positions; those with the lowest
// entropies keep a sampled token, all others, including ones accepted earlier, are drawn afresh. What is committed is
// the argmax of the last step, not the sampled canvas. Same procedure and same order of random draws as
// `DiffusionGemmaForBlockDiffusion.generate` of transformers for a batch of one.
//
// Asks to encode the text before each canvas; tells a draft per step, committed tokens per canvas and the end.
class DiffusionGemmaSampler : public Sampler {
 public:
  // Throws Error (EK_INVALID_ARGUMENT).
  DiffusionGemmaSampler(SamplerModel model, DiffusionGemmaOptions options);

  void begin(const std::vector<std::int64_t> &prompt, std::uint64_t seed) override;
  std::unique_ptr<Sampler> copy() const override { return std::make_unique<DiffusionGemmaSampler>(*this); }

 protected:
  const char *name() const override { return "diffusion_gemma"; }
  std::string options_text() const override { return text_of(options_); }
  void proceed(HeadResult &&answer) override;
  void go_on() override;
  void write(StateWriter &state) const override;
  void read(StateReader &state) override;
  void ask_waiting() override;

 private:
  void begin_canvas();
  void begin_step();
  void end_step(HeadResult &&answer);
  void commit();
  void end_canvas();

  // The stopping rule: whether a step with this argmax, which joins the history, is the last of its canvas.
  bool settled(const std::vector<float> &entropy);

  template <typename Archive, typename Self>
  static void fields(Archive &archive, Self &self);

  DiffusionGemmaOptions options_;
  std::vector<std::int64_t> waiting_;  // final text that is not encoded
  std::int64_t length_ = 0;            // of all text, padding of the answer with it
  std::int64_t canvases_ = 0, canvas_index_ = 0;

  // Of the canvas.
  std::vector<std::int64_t> canvas_, best_;  // what is shown to the model, its argmax
  std::vector<float> soft_;                  // the last step's soft embedding [canvas, hidden]; empty in the first
  std::deque<std::vector<std::int64_t>> history_;  // argmax of the last `stability_threshold` steps
  std::int64_t step_ = 0;                          // steps that are over
  bool last_ = false;                              // the step was the last
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_DIFFUSION_GEMMA_H
