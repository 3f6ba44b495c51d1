// Denoising steps that are drafted ahead and verified (FreeDave, arXiv 2510.00294).
#ifndef EDGEKIT_SAMPLING_DRAFTS_H
#define EDGEKIT_SAMPLING_DRAFTS_H

#include <cstdint>
#include <optional>
#include <vector>

#include "sampling/ask.h"

namespace edgekit {

// The denoising step that is asked for, as a segment that a pass may have beside others; none: it is something else, or it
// keeps keys and values.
std::optional<AskSegment> step_of(const Ask &ask);

// What is known of steps that are to come: what the last one predicts, and the answers to those that its pass had beside it.
//
// An answer is that to the very same step, noise included, or it is not taken. So it does not matter how a draft came about:
// the tokens are those of one step a pass.
class Drafts {
 public:
  static constexpr std::int64_t kMostSteps = 64;

  // Of a pass, at most; 1: nothing is drafted.
  explicit Drafts(std::int64_t steps = 1) : steps_(steps) {}

  std::int64_t steps() const { return steps_; }
  bool any() const { return steps_ > 1; }

  // Of the step that begins: what it predicts is what is known of those behind it.
  void predict(const AskSegment &step, const HeadResult &answer);
  // The answer that the last step gives to another; none: it says nothing of a row, or not all that is asked for.
  std::optional<HeadResult> guess(const AskSegment &step) const;

  // Drafted steps that are in the pass under way, and their answers.
  void ask(std::vector<AskSegment> steps) { asked_ = std::move(steps); }
  std::size_t asked() const { return asked_.size(); }
  void verify(std::vector<HeadResult> answers);

  // The answer to a step that was drafted; what was drafted otherwise goes.
  std::optional<HeadResult> take(const AskSegment &step);

  // Forgets everything.
  void clear() { *this = Drafts(steps_); }

 private:
  std::int64_t steps_;
  std::optional<AskSegment> last_;
  HeadResult predicted_;  // by it
  std::vector<AskSegment> asked_;
  std::vector<HeadResult> answers_;  // to those that were asked for, once they are there
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_DRAFTS_H
