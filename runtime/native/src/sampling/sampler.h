// A denoising procedure as a state machine. It holds tokens, options, random numbers and counters, and does nothing by
// itself: it asks, whoever drives it does the pass, and answers. So one procedure runs under callbacks and iterators of
// any language without threads, and is a value: it can be copied, saved, and stopped anywhere.
#ifndef EDGEKIT_SAMPLING_SAMPLER_H
#define EDGEKIT_SAMPLING_SAMPLER_H

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "sampling/ask.h"
#include "sampling/statistics.h"

namespace edgekit {

// What a sampler knows of the model that answers.
struct SamplerModel {
  std::int64_t vocabulary = 0;
  std::int64_t hidden_size = 0;  // of a soft embedding
  bool projects = true;          // keeps the hidden states of a pass; else the sampler asks for the pass again
  // Where the generation begins, for an option continue_prefix.
  std::int64_t prefix_length = 0;
  std::vector<std::int64_t> uncached;  // text behind the prefix that is final and not encoded
};

class Sampler {
 public:
  virtual ~Sampler() = default;

  // What to do now. It stays until next() returns.
  const Ask &ask() const { return ask_; }
  const Stats &stats() const { return stats_; }

  // Goes on: what was asked has been done, and `answer` is that of a denoise or project. After done nothing follows.
  // Throws Error and asks the same again: EK_INTERNAL for an answer that lacks something, EK_NOT_FINITE.
  void next(HeadResult answer = {});

  // The generation ends where it is: the counters say so.
  void stop() { stats_.finish_reason = FinishReason::cancelled; }

  virtual std::unique_ptr<Sampler> copy() const = 0;

 protected:
  explicit Sampler(SamplerModel model) : model_(std::move(model)) {}
  Sampler(const Sampler &) = default;

  // Replaces ask(), which was done. The answer is complete and finite.
  virtual void proceed(HeadResult &&answer) = 0;

  const SamplerModel &model() const { return model_; }
  Stats &counters() { return stats_; }

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

  // Throw Error (EK_INVALID_ARGUMENT) unless every id is a row of the vocabulary.
  void check_prompt(const std::vector<std::int64_t> &prompt) const;
  void check_option(const char *name, const std::vector<std::int64_t> &tokens) const;

 private:
  void check(const HeadResult &answer) const;

  SamplerModel model_;
  Ask ask_;
  Stats stats_;
  std::int64_t positions_ = 0;  // of the last denoise
  std::int64_t committed_ = 0;  // tokens that were told, padding with them
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_SAMPLER_H
