// LLaDA's proposals from full scores, for what a statistic of the scores cannot express: mixing two passes, and leaving
// tokens out of the softmax. Full scores take rows * vocabulary floats, so they come a few rows at a time.
#ifndef EDGEKIT_SAMPLING_LLADA_SCORES_H
#define EDGEKIT_SAMPLING_LLADA_SCORES_H

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "sampling/ask.h"
#include "sampling/options.h"
#include "sampling/proposal.h"

namespace edgekit {

// What LLaDA compares: the odds against a token, (1 - p) / p, negated. They order tokens as their probabilities do, and
// tell those apart that round to 1. An end token that is to be the last is below even what rounds to p = 0.
inline double llada_confidence(double odds_against) {
  return -std::min(odds_against, std::numeric_limits<double>::max());
}

// Of a confidence.
inline double llada_probability(double confidence) { return 1 / (1 - confidence); }

// The passes of one denoising step. Of each chunk of rows: the conditional scores, then, with guidance, the
// unconditional ones, of the canvas whose prompt is masked.
class LladaScores {
 public:
  enum class Pass { conditional, again, unconditional };

  // `rows` are indices into the canvas, `at_once` bounds those of one chunk.
  LladaScores(std::vector<std::int64_t> rows, std::int64_t at_once, std::int64_t vocabulary);

  bool complete() const { return start_ == static_cast<std::int64_t>(rows_.size()); }

  // What comes next.
  Pass pass() const { return pass_; }
  HeadRequest request() const;

  // The scores of that, and roles where they were asked for. Throws Error (EK_NOT_FINITE) and stays as it is where the options leave a row without a score.
  void take(HeadResult &&answer, const LladaOptions &options, const std::optional<GumbelDraw> &gumbel);

  // Of the rows that are complete.
  Proposal &proposal() { return proposal_; }

 private:
  std::int64_t stop() const;  // of the chunk
  const float *row(const std::vector<float> &scores, std::int64_t index) const {
    return scores.data() + index * vocabulary_;
  }

  std::vector<std::int64_t> rows_;
  std::int64_t at_once_, vocabulary_;
  std::int64_t start_ = 0;  // of the chunk
  Pass pass_ = Pass::conditional;
  std::vector<float> conditional_;  // scores that wait for the unconditional ones
  std::vector<float> conditional_roles_;
  Proposal proposal_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_LLADA_SCORES_H
