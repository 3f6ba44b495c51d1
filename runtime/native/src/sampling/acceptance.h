// Rules by which a denoising step commits positions that are open: as many as are sure, instead of as many as a schedule
// says. All are approximations of one position a step.
#ifndef EDGEKIT_SAMPLING_ACCEPTANCE_H
#define EDGEKIT_SAMPLING_ACCEPTANCE_H

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/head.h"
#include "sampling/option_fields.h"
#include "sampling/proposal.h"
#include "sampling/saved_state.h"

namespace edgekit {

// The options of the rules. One of the first four, persistence, or both replace a schedule.
struct AcceptanceRules {
  std::optional<double> threshold;
  std::optional<double> factor;
  std::optional<double> entropy_bound;
  std::optional<double> margin;
  std::optional<std::int64_t> persistence;
  double persistent_threshold = 0.6;
  std::optional<double> stability;
  std::optional<double> early_commit;

  bool replace_schedule() const { return threshold || factor || entropy_bound || margin || persistence; }
  bool any() const { return replace_schedule() || early_commit; }
  bool need_margin() const { return margin || early_commit; }

  // Throws Error (EK_INVALID_ARGUMENT) for rules that contradict each other.
  void check() const;
  UnusedOptions unused() const;
  // Points into the struct.
  void append_fields(OptionFields &fields);

  static constexpr std::int64_t kMostPersistence = std::int64_t{1} << 22;
};

// For how many steps the likeliest token of each position has been the same as now.
class Streaks {
 public:
  Streaks() = default;
  explicit Streaks(std::int64_t positions);

  // A step with proposals for some of the positions. A streak also ends where the probability of the token has changed by
  // more than `stability` since the step before.
  void add(const std::vector<std::int64_t> &positions, const std::vector<std::int64_t> &best,
           const std::vector<double> &probability, std::optional<double> stability);

  std::int64_t operator[](std::int64_t position) const { return steps_[static_cast<std::size_t>(position)]; }

  // Of a saved state, for so many positions.
  template <typename Archive, typename Self>
  static void fields(Archive &archive, Self &self, std::int64_t positions, std::int64_t vocabulary) {
    const StateLimits count{positions, positions};
    archive.integers("the likeliest tokens", self.best_, count, {-1, vocabulary - 1});
    archive.integers("streaks", self.steps_, count, {0, kMostSteps});
    archive.floats("probabilities", self.probability_, count);
  }

 private:
  static constexpr std::int64_t kMostSteps = std::int64_t{1} << 40;

  std::vector<std::int64_t> best_, steps_;  // -1: not proposed yet
  std::vector<float> probability_;
};

// Adds what rules look at to a proposal, of all rows of an answer; margins where it has the two best tokens or more. The
// probability of the token is the procedure's.
void add_evidence(const HeadResult &answer, Proposal &proposal);

// Which of the proposals to commit, as indices into them: one at least, the most confident one where the rules accept none.
// `streaks` are those of the proposals, where a rule looks at them.
std::vector<std::int64_t> accepted(const Proposal &proposal, const std::vector<std::int64_t> &streaks,
                                   const AcceptanceRules &rules);

// How many values of an order to take so that their sum without the largest does not exceed `bound`; one at least.
std::int64_t count_by_entropy(const std::vector<double> &in_order, double bound);

// Whether every margin exceeds `bound`.
bool settled(const std::vector<double> &margin, double bound);

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_ACCEPTANCE_H
