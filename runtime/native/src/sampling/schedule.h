// How many and which positions a denoising step settles.
#ifndef EDGEKIT_SAMPLING_SCHEDULE_H
#define EDGEKIT_SAMPLING_SCHEDULE_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace edgekit {

// t_min + (t_max - t_min) * remaining / steps in float32, remaining = steps .. 1.
float linear_temperature(std::int64_t remaining, std::int64_t steps, double t_min, double t_max);

// The positions, lowest entropy first, whose entropies summed before the position do not exceed `bound` nats.
std::vector<std::uint8_t> accept_by_entropy(const std::vector<float> &entropy, double bound);

// How many of `masked` positions step `step` of `steps` commits: as even as possible, the larger ones first.
std::int64_t transfer_count(std::int64_t masked, std::int64_t steps, std::int64_t step);

// How many of the most probable positions to commit: those before the first k-th highest probability below
// 1 - factor / (k + 1), the first one's bound being -1; at least one, and the last too where only it fails.
std::int64_t count_by_factor(const std::vector<double> &probability, double factor);

// Indices of x in ascending order, ties to the lower index, NaN last.
template <typename Number>
std::vector<std::int64_t> ascending_order(const std::vector<Number> &x) {
  std::vector<std::int64_t> order(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t left, std::int64_t right) {
    const Number a = x[static_cast<std::size_t>(left)], b = x[static_cast<std::size_t>(right)];
    return a < b || (b != b && a == a);
  });
  return order;
}

// Indices of the `count` highest values, highest first, ties to the lower index.
template <typename Number>
std::vector<std::int64_t> most_confident(std::vector<Number> confidence, std::int64_t count) {
  for (Number &value : confidence) value = -value;
  std::vector<std::int64_t> order = ascending_order(confidence);
  order.resize(std::min(order.size(), static_cast<std::size_t>(count)));
  return order;
}

// steps + 1 values from 1 down to eps, float32, evaluated from both ends towards the middle.
std::vector<float> timesteps(std::int64_t steps, double eps);

// Share of the masked positions that step `step` (0-based) unmasks: 1 - s/t, and 1 at the last step.
float transfer_probability(const std::vector<float> &times, std::int64_t step);

bool contains(const std::vector<std::int64_t> &ids, std::int64_t token);

// Length of ids up to and including the first end token from index `from` on that is not open, once nothing before it is
// open.
std::optional<std::int64_t> answer_end(const std::int64_t *ids, const std::vector<std::uint8_t> &open,
                                       const std::vector<std::int64_t> &end_ids, std::int64_t from = 0);

// Indices where open is not 0.
std::vector<std::int64_t> positions_of(const std::vector<std::uint8_t> &open);

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_SCHEDULE_H
