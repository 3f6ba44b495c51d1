// A denoising procedure as a state machine. It holds tokens, options, random numbers and counters, and does nothing by
// itself: it asks, whoever drives it does the pass, and answers. So one procedure runs under callbacks and iterators of
// any language without threads, and is a value: it can be copied, saved, and stopped anywhere.
#ifndef EDGEKIT_SAMPLING_SAMPLER_H
#define EDGEKIT_SAMPLING_SAMPLER_H

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sampling/ask.h"
#include "sampling/draws.h"
#include "sampling/options.h"
#include "sampling/saved_state.h"
#include "sampling/statistics.h"
#include "sampling/text_number.h"

namespace edgekit {

// What a sampler knows of the model that answers.
struct SamplerModel {
  std::int64_t vocabulary = 0;
  std::int64_t hidden_size = 0;  // of a soft embedding
  bool projects = true;          // keeps the hidden states of a pass; else the sampler asks for the pass again
  // Where the generation begins, for an option continue_prefix.
  std::int64_t prefix_length = 0;
  std::vector<std::vector<std::int64_t>> encoded;  // what the prefix is, in pieces; needed to save and restore only
  std::vector<std::int64_t> uncached;  // text behind the prefix that is final and not encoded
};

class Sampler {
 public:
  virtual ~Sampler() = default;

  // Gives it its prompt, before anything else. Throws Error (EK_INVALID_ARGUMENT).
  virtual void begin(const std::vector<std::int64_t> &prompt, std::uint64_t seed) = 0;

  const SamplerModel &model() const { return model_; }

  // What the generation takes, at most.
  const Lengths &lengths() const { return lengths_; }

  // What to do now. It stays until next() returns.
  const Ask &ask() const { return ask_; }
  // Which pass answered the last denoise, see Denoiser::last_pass(): a project is of the same.
  std::uint64_t pass() const { return pass_; }
  void set_pass(std::uint64_t pass) { pass_ = pass; }
  const Stats &stats() const { return stats_; }

  // Goes on: what was asked has been done, and `answer` is that of a denoise or project. After done nothing follows.
  // Throws Error and asks the same again: EK_INTERNAL for an answer that lacks something, EK_NOT_FINITE.
  void next(HeadResult answer = {});

  // The generation ends where it is, and the counters say so, unless next() follows.
  void stop() { stats_.finish_reason = FinishReason::cancelled; }

  virtual std::unique_ptr<Sampler> copy() const = 0;

  // Asks for all text to be encoded again before it goes on, for a model that does not hold it, such as that of a copy.
  // Throws Error (EK_INVALID_STATE) where the ids of the text before the generation are not known.
  void restore();

  // The state as bytes, see load_sampler(). A step under way is begun again, what was told is not told again.
  // `bundle` names what the state belongs to. Throws Error (EK_INVALID_STATE) as restore().
  std::string save(const std::string &bundle) const;

 protected:
  explicit Sampler(SamplerModel model);
  Sampler(const Sampler &) = default;

  // The family's, as in a manifest.
  virtual const char *name() const = 0;
  virtual std::string options_text() const = 0;

  // Replaces ask(), which was done. The answer is complete and finite.
  virtual void proceed(HeadResult &&answer) = 0;

  // Goes on between two denoising steps: asks for the pass of the next, or tells what is committed.
  virtual void go_on() = 0;
  // What go_on() needs to know.
  virtual void write(StateWriter &state) const = 0;
  // Throws Error (EK_MALFORMED_FILE) for what no sampler has written.
  virtual void read(StateReader &state) = 0;
  // Asks to encode final text; for families that have a causal prefix. Throws Error (EK_MALFORMED_FILE).
  virtual void ask_waiting();

  Stats &counters() { return stats_; }
  Draws &draws() { return draws_; }
  void seed(std::uint64_t seed) { draws_ = Draws(seed); }
  void set_lengths(const Lengths &lengths) { lengths_ = lengths; }

  // go_on() begins: a state that is saved before it is called again goes on here.
  void mark();

  void ask_forget();
  void ask_encode(std::vector<std::int64_t> ids);
  void ask_denoise(std::vector<std::int64_t> ids, HeadRequest request, std::vector<float> soft = {});
  // Another request on the last pass, which was one of `ids` without a soft embedding.
  void ask_again(const std::vector<std::int64_t> &ids, HeadRequest request);
  void tell_draft(std::int64_t canvas_index, std::int64_t step, std::int64_t start, std::vector<std::int64_t> ids,
                  std::vector<std::uint8_t> accepted);
  void tell_committed(std::int64_t canvas_index, std::vector<std::int64_t> ids, std::vector<std::int64_t> kept = {});
  void tell_done();

  // Rows whose full scores take no more than this, one at least.
  std::int64_t rows_within(std::int64_t bytes) const;

  // Throws Error (EK_INVALID_PROMPT) unless every id is a row of the vocabulary.
  void check_prompt(const std::vector<std::int64_t> &prompt) const;

 private:
  friend std::unique_ptr<Sampler> load_sampler(std::string_view state, SamplerModel model, const std::string &bundle);

  void check(const HeadResult &answer) const;
  void check_text_known() const;
  void go_on_restoring();
  void load(StateReader &state);
  void encoded(const std::vector<std::int64_t> &ids);
  void ask_behind_text();

  SamplerModel model_;
  Lengths lengths_;
  Ask ask_;
  Stats stats_;
  Draws draws_{0};
  // Of a model with a causal prefix: the text that is encoded, in the pieces in which it was.
  std::vector<std::vector<std::int64_t>> text_;
  bool text_known_ = true;
  // Of what is encoded now, while text is encoded again too.
  std::int64_t prefix_length_ = 0;
  std::uint64_t encoded_ = kEmptyText;
  std::uint64_t pass_ = 0;

  // While text is encoded again: what is asked for behind it, and how many pieces were asked for.
  std::optional<Ask> delayed_;
  std::size_t restored_ = 0;

  // At the mark.
  Stats marked_stats_;
  Draws marked_draws_{0};
  std::int64_t committed_ = 0;  // tokens that were told, padding with them
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_SAMPLER_H
