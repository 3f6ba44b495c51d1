// The model as a loop calls it: inputs checked, passes counted, results complete and finite, as
// runtime/sampling/passes.py.
#ifndef EDGEKIT_SAMPLING_PASSES_H
#define EDGEKIT_SAMPLING_PASSES_H

#include <cstdint>
#include <vector>

#include "sampling/denoiser.h"
#include "sampling/events.h"

namespace edgekit {

// Throws Error (EK_INVALID_ARGUMENT) unless every id is a row of the vocabulary.
void check_prompt(const std::vector<std::int64_t> &prompt, std::int64_t vocabulary);
void check_within_vocabulary(const char *name, const std::vector<std::int64_t> &tokens, std::int64_t vocabulary);

class Passes {
 public:
  // Counts into `stats`; `logits_budget_bytes` bounds the float32 scores that are in memory at once.
  Passes(Denoiser &denoiser, Stats &stats, std::int64_t logits_budget_bytes);

  std::int64_t vocabulary() const { return vocabulary_; }

  // Rows whose full scores fit the budget, at least one.
  std::int64_t rows_at_once() const { return rows_at_once_; }

  // One pass over all layers. `soft` is empty or [ids, hidden]. Throws Error (EK_NOT_FINITE).
  HeadResult run(const std::vector<std::int64_t> &ids, const HeadRequest &request,
                 const std::vector<float> &soft = {});

  // Another request on the hidden states of the last pass, which is repeated where the denoiser does not keep them.
  // Throws Error (EK_NOT_FINITE).
  HeadResult again(const HeadRequest &request);

 private:
  HeadResult checked(HeadResult result, const HeadRequest &request) const;

  Denoiser &denoiser_;
  Stats &stats_;
  std::int64_t vocabulary_;
  std::int64_t rows_at_once_;
  std::int64_t positions_ = 0;  // of the last pass
  // Of the last pass, where it may have to be repeated.
  std::vector<std::int64_t> last_ids_;
  std::vector<float> last_soft_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_PASSES_H
