// The procedure of DiffusionGemma: entropy-bounded acceptance over a canvas of random tokens.
#ifndef EDGEKIT_SAMPLING_DIFFUSION_GEMMA_H
#define EDGEKIT_SAMPLING_DIFFUSION_GEMMA_H

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "sampling/acceptance.h"
#include "sampling/options.h"
#include "sampling/sampler.h"

namespace edgekit {

// A canvas starts as uniformly random tokens. Every step the model predicts all positions; those with the lowest
// entropies keep a sampled token, all others, including ones accepted earlier, are drawn afresh. What is committed is
// the argmax of the last step, not the sampled canvas. Same procedure and same order of random draws as
// `DiffusionGemmaForBlockDiffusion.generate` of transformers for a batch of one, whose `decoder_input_ids` the option
// `canvas` is. Fixed places of the first canvas are shown and committed as they were given; they count for no bound.
//
// Two options that transformers has not spend fewer steps. Persistence: a place also keeps its best token where that has
// been the same for some steps and its entropy is low, so that what is sure is not drawn afresh. Verification: once the
// entropies are low together, the model is shown its best tokens and nothing else, and the canvas is done if it predicts each
// of them again; places where it does not are drawn afresh.
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
  bool hurries() const override { return true; }
  void go_on() override;
  void write(StateWriter &state) const override;
  void read(StateReader &state) override;
  void ask_waiting() override;

 private:
  void begin_canvas();
  void mark_fixed();  // of this canvas
  void begin_step();
  void end_step(HeadResult &&answer);
  void commit();
  void end_canvas();

  // The stopping rule: whether a step with this argmax, which joins the history, is the last of its canvas.
  bool is_settled(const std::vector<float> &entropy);
  // Which places keep what the step proposes for them; those that persist get their best token as proposal.
  std::vector<std::uint8_t> accepted(HeadResult &answer);
  // The canvas of the next step; `fresh` are random tokens.
  void show_next(const HeadResult &answer, const std::vector<std::uint8_t> &accepted,
                 const std::vector<std::int64_t> &fresh);
  bool has_given() const { return canvas_index_ == 0 && !options_.canvas.empty(); }
  // Of the places that are not fixed.
  std::vector<float> open_of(const std::vector<float> &values) const;
  void put_back(std::vector<std::int64_t> &ids) const;  // what is fixed

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
  bool ends_ = false;                              // the step commits its best tokens, whatever they are
  bool verifies_ = false;                          // the step shows the best tokens of the one before
  Streaks streaks_;
  std::vector<std::uint8_t> fixed_;  // places; of the first canvas, nothing of the others
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_DIFFUSION_GEMMA_H
