#include "sampling/roles.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "sampling/schedule.h"

namespace edgekit {

std::vector<std::int64_t> likeliest_roles(const std::vector<float> &scores) {
  std::vector<std::int64_t> roles;
  for (auto row = scores.begin(); row != scores.end(); row += kRoles) {
    roles.push_back(std::max_element(row, row + kRoles) - row);
  }
  return roles;
}

std::vector<std::int64_t> in_logic_order(const std::vector<std::int64_t> &roles, const std::vector<double> &confidence,
                                         std::int64_t count) {
  std::vector<std::int64_t> order = most_confident(confidence, static_cast<std::int64_t>(confidence.size()));
  if (!roles.empty()) {
    const auto rank = [&](std::int64_t index) {
      const auto i = static_cast<std::size_t>(index);
      return confidence[i] == -std::numeric_limits<double>::infinity() ? kRoles : roles[i];
    };
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return rank(a) < rank(b); });
  }
  order.resize(std::min(order.size(), static_cast<std::size_t>(count)));
  return order;
}

}  // namespace edgekit
