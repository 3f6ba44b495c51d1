#include "executor/scratch_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace edgekit {
namespace {

std::size_t rounded(std::size_t size) { return (size + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment; }

}  // namespace

ScratchPlan::ScratchPlan(std::vector<Lifetime> lifetimes, const std::vector<std::size_t> &example_sizes)
    : lifetimes_(std::move(lifetimes)), order_(lifetimes_.size()) {
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  // Largest first: small ones fill the gaps that large ones leave.
  std::stable_sort(order_.begin(), order_.end(),
                   [&](std::size_t a, std::size_t b) { return example_sizes[a] > example_sizes[b]; });
  std::vector<std::size_t> offsets(order_.size(), 0);
  std::vector<std::size_t> placed;
  for (const std::size_t buffer : order_) {
    std::vector<std::pair<std::size_t, std::size_t>> used;
    for (const std::size_t other : placed) {
      if (overlap(buffer, other)) used.emplace_back(offsets[other], offsets[other] + rounded(example_sizes[other]));
    }
    std::sort(used.begin(), used.end());
    std::size_t offset = 0;
    for (const auto &[begin, end] : used) {
      if (offset + rounded(example_sizes[buffer]) <= begin) break;
      offset = std::max(offset, end);
    }
    offsets[buffer] = offset;
    placed.push_back(buffer);
  }
  std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) { return offsets[a] < offsets[b]; });
}

bool ScratchPlan::overlap(std::size_t a, std::size_t b) const {
  return lifetimes_[a].first <= lifetimes_[b].last && lifetimes_[b].first <= lifetimes_[a].last;
}

std::size_t ScratchPlan::place(const std::vector<std::size_t> &sizes, std::vector<std::size_t> &offsets) const {
  offsets.assign(order_.size(), 0);
  std::size_t total = 0;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const std::size_t buffer = order_[i];
    std::size_t offset = 0;
    for (std::size_t j = 0; j < i; ++j) {
      const std::size_t below = order_[j];
      if (overlap(buffer, below)) offset = std::max(offset, offsets[below] + rounded(sizes[below]));
    }
    offsets[buffer] = offset;
    total = std::max(total, offset + rounded(sizes[buffer]));
  }
  return total;
}

}  // namespace edgekit
