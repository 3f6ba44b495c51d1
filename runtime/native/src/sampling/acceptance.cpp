#include "sampling/acceptance.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "error.h"
#include "sampling/portable.h"
#include "sampling/schedule.h"

namespace edgekit {
namespace {

using Ids = std::vector<std::int64_t>;

// Whether a token may be committed before all others are.
bool may_go(const Proposal &proposal, std::size_t i) { return std::isfinite(proposal.probability[i]); }

// Indices in descending order of probability; equal ones by confidence, which may tell them apart.
Ids by_probability(const Proposal &proposal) {
  const auto all = static_cast<std::int64_t>(proposal.tokens.size());
  Ids order = most_confident(proposal.confidence, all);
  const auto probability = [&](std::int64_t i) { return proposal.probability[static_cast<std::size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return probability(a) > probability(b); });
  return order;
}

}  // namespace

void AcceptanceRules::check() const {
  std::vector<const char *> set;
  for (const auto &[name, is_set] : {std::pair{"threshold", threshold.has_value()},
                                     std::pair{"factor", factor.has_value()},
                                     std::pair{"entropy_bound", entropy_bound.has_value()},
                                     std::pair{"margin", margin.has_value()}}) {
    if (is_set) set.push_back(name);
  }
  if (set.size() > 1) fail(EK_INVALID_ARGUMENT, set[0], " and ", set[1], " are both set; use one of them");
  if (stability && !persistence)
    fail(EK_INVALID_ARGUMENT, "stability is set without persistence, which it is a part of; set persistence too");
}

UnusedOptions AcceptanceRules::unused() const {
  UnusedOptions all;
  if (!persistence) all.emplace_back("persistent_threshold", "without persistence");
  if (replace_schedule()) all.emplace_back("steps", "with an acceptance rule, which takes the place of the schedule");
  return all;
}

void AcceptanceRules::append_fields(OptionFields &fields) {
  const auto probability = [](const char *name, OptionValue value, const char *help) {
    return OptionField(name, value, help).above(0).at_most(1);
  };
  fields.push_back(probability("threshold", &threshold, "Confidence at which a token is committed at once (Fast-dLLM)."));
  fields.push_back(OptionField("factor", &factor, "Tokens a step by their confidences together (Fast-dLLM).").above(0));
  fields.push_back(OptionField("entropy_bound", &entropy_bound,
                               "Nats that the tokens of one step but the least sure may have together (EB-Sampler).")
                       .at_least(0));
  fields.push_back(OptionField("margin", &margin, "Lead over the next likely token above which one is committed at once.")
                       .at_least(0)
                       .at_most(1));
  fields.push_back(OptionField("persistence", &persistence,
                               "Steps that a token has been the likeliest before it is committed for that (as LESS).")
                       .at_least(1)
                       .at_most(kMostPersistence));
  fields.push_back(probability("persistent_threshold", &persistent_threshold,
                               "Confidence that a token which is committed for its persistence needs."));
  fields.push_back(probability("stability", &stability,
                               "Most that the probability of such a token may change from step to step; null: any."));
  fields.push_back(OptionField("early_commit", &early_commit,
                               "Smallest margin of all open tokens above which the answer is settled (as Prophet).")
                       .at_least(0)
                       .at_most(1));
}

Streaks::Streaks(std::int64_t positions)
    : best_(static_cast<std::size_t>(positions), -1),
      steps_(static_cast<std::size_t>(positions), 0),
      probability_(static_cast<std::size_t>(positions), 0.0f) {}

void Streaks::add(const Ids &positions, const Ids &best, const std::vector<double> &probability,
                  std::optional<double> stability) {
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const auto at = static_cast<std::size_t>(positions[i]);
    const float now = static_cast<float>(probability[i]);
    const double change = std::abs(static_cast<double>(now) - static_cast<double>(probability_[at]));
    const bool same = best_[at] == best[i] && (!stability || change <= *stability);
    steps_[at] = same ? std::min(steps_[at] + 1, kMostSteps) : 0;
    best_[at] = best[i];
    probability_[at] = now;
  }
}

void add_evidence(const HeadResult &answer, Proposal &proposal) {
  const std::size_t rows = answer.argmax.size(), width = rows == 0 ? 0 : answer.top_z.size() / rows;
  proposal.best = answer.argmax;
  proposal.entropy.assign(answer.entropy.begin(), answer.entropy.end());
  for (std::size_t r = 0; r < rows; ++r) {
    proposal.best_probability.push_back(1 / (1 + static_cast<double>(answer.others[r])));
    if (width == 0) continue;
    const auto probability = [&](std::size_t k) {
      return k < width ? static_cast<double>(portable_exp(answer.top_z[r * width + k] - answer.log_z[r])) : 0.0;
    };
    proposal.margin.push_back(probability(0) - probability(1));
  }
}

std::int64_t count_by_entropy(const std::vector<double> &in_order, double bound) {
  double sum = 0, largest = 0;
  std::int64_t count = 0;
  for (const double entropy : in_order) {
    sum += entropy;
    largest = std::max(largest, entropy);
    if (count > 0 && sum - largest > bound) break;
    ++count;
  }
  return count;
}

bool settled(const std::vector<double> &margin, double bound) {
  return std::all_of(margin.begin(), margin.end(), [&](double own) { return own > bound; });
}

Ids accepted(const Proposal &proposal, const Ids &streaks, const AcceptanceRules &rules) {
  const std::size_t size = proposal.tokens.size();
  const Ids order = most_confident(proposal.confidence, static_cast<std::int64_t>(size));
  std::vector<std::uint8_t> takes(size, 0);
  const auto take_first = [&](const Ids &sorted, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) takes[static_cast<std::size_t>(sorted[static_cast<std::size_t>(i)])] = 1;
  };
  if (rules.factor) take_first(by_probability(proposal), count_by_factor(proposal.probability, *rules.factor));
  if (rules.entropy_bound) {
    std::vector<double> entropy;
    for (const std::int64_t i : order) {
      if (may_go(proposal, static_cast<std::size_t>(i))) entropy.push_back(proposal.entropy[static_cast<std::size_t>(i)]);
    }
    take_first(order, count_by_entropy(entropy, *rules.entropy_bound));
  }
  for (std::size_t i = 0; i < size; ++i) {
    if (!may_go(proposal, i)) continue;
    const bool persists = rules.persistence && streaks[i] >= *rules.persistence;
    if ((rules.threshold && proposal.probability[i] >= *rules.threshold) ||
        (rules.margin && proposal.margin[i] > *rules.margin) ||
        (persists && proposal.probability[i] >= rules.persistent_threshold))
      takes[i] = 1;
  }
  if (size > 0 && std::none_of(takes.begin(), takes.end(), [](std::uint8_t flag) { return flag != 0; }))
    take_first(order, 1);
  return positions_of(takes);
}

}  // namespace edgekit
