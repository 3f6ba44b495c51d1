#include "sampling/schedule.h"

namespace edgekit {

float linear_temperature(std::int64_t remaining, std::int64_t steps, double t_min, double t_max) {
  const float fraction = static_cast<float>(remaining) / static_cast<float>(steps);
  return static_cast<float>(t_min) + static_cast<float>(t_max - t_min) * fraction;
}

std::vector<std::uint8_t> accept_by_entropy(const std::vector<float> &entropy, double bound) {
  std::vector<std::uint8_t> accepted(entropy.size());
  double sum = 0;
  for (const std::int64_t index : ascending_order(entropy)) {
    const float own = entropy[static_cast<std::size_t>(index)];
    sum += static_cast<double>(own);
    accepted[static_cast<std::size_t>(index)] = static_cast<float>(sum) - own <= static_cast<float>(bound);
  }
  return accepted;
}

std::int64_t transfer_count(std::int64_t masked, std::int64_t steps, std::int64_t step) {
  return masked / steps + (step < masked % steps ? 1 : 0);
}

std::int64_t count_by_factor(const std::vector<double> &probability, double factor) {
  const std::vector<std::int64_t> order = ascending_order(probability);
  const std::size_t size = order.size();
  std::size_t passing = 0;
  for (; passing < size; ++passing) {
    const double value = probability[static_cast<std::size_t>(order[size - 1 - passing])];
    if (value < (passing == 0 ? -1 : 1 - factor / static_cast<double>(passing + 2))) break;
  }
  return static_cast<std::int64_t>(passing == 0 || passing + 1 == size ? passing + 1 : passing);
}

std::vector<float> timesteps(std::int64_t steps, double eps) {
  const float last = static_cast<float>(eps);
  const float stride = (last - 1.0f) / static_cast<float>(steps);
  std::vector<float> times(static_cast<std::size_t>(steps) + 1);
  for (std::int64_t i = 0; i <= steps; ++i) {
    times[static_cast<std::size_t>(i)] = i < (steps + 1) / 2 ? 1.0f + stride * static_cast<float>(i)
                                                             : last - stride * static_cast<float>(steps - i);
  }
  return times;
}

float transfer_probability(const std::vector<float> &times, std::int64_t step) {
  const std::size_t i = static_cast<std::size_t>(step);
  return i + 2 == times.size() ? 1.0f : 1.0f - times[i + 1] / times[i];
}

bool contains(const std::vector<std::int64_t> &ids, std::int64_t token) {
  return std::find(ids.begin(), ids.end(), token) != ids.end();
}

std::optional<std::int64_t> answer_end(const std::int64_t *ids, const std::vector<std::uint8_t> &open,
                                       const std::vector<std::int64_t> &end_ids, std::int64_t from) {
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (open[i] != 0) return std::nullopt;
    if (static_cast<std::int64_t>(i) >= from && contains(end_ids, ids[i])) return static_cast<std::int64_t>(i) + 1;
  }
  return std::nullopt;
}

std::vector<std::int64_t> positions_of(const std::vector<std::uint8_t> &open) {
  std::vector<std::int64_t> positions;
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (open[i] != 0) positions.push_back(static_cast<std::int64_t>(i));
  }
  return positions;
}

}  // namespace edgekit
