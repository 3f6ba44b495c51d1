#include "kernels/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/float_ops.h"

namespace edgekit {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
// Elements per task.
constexpr std::int64_t kShare = 16384;
// Keeps weights finite where all probabilities are 0, and is nothing beside others.
constexpr float kLeastSum = 1e-20f;

// p = 1 / (1 + e^-x).
void sigmoid(const float *x, std::int64_t count, float *p) {
  for (std::int64_t i = 0; i < count; ++i) p[i] = -x[i];
  exp_array(p, count, p);
  for (std::int64_t i = 0; i < count; ++i) p[i] = 1 / (1 + p[i]);
}

// Removes all experts of a row but those of the groups whose two most wanted have the largest sum.
void keep_groups(const RoutingRule &rule, float *wanted) {
  const std::int64_t size = rule.experts / rule.groups;
  std::vector<float> sums;
  for (std::int64_t group = 0; group < rule.groups; ++group) {
    float first = kNever, second = kNever;
    for (std::int64_t e = group * size; e < (group + 1) * size; ++e) {
      second = std::max(second, std::min(first, wanted[e]));
      first = std::max(first, wanted[e]);
    }
    const float sum = first + second;
    sums.push_back(std::isnan(sum) ? kNever : sum);
  }
  std::vector<std::int64_t> order(sums.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return sums[static_cast<std::size_t>(a)] > sums[static_cast<std::size_t>(b)];
  });
  for (std::size_t i = static_cast<std::size_t>(rule.kept_groups); i < order.size(); ++i) {
    std::fill_n(wanted + order[i] * size, size, kNever);
  }
}

// Removes all experts of a block's rows but those that some row wants most.
void keep_most_wanted(const RoutingRule &rule, std::int64_t rows, float *wanted) {
  const std::size_t experts = static_cast<std::size_t>(rule.experts);
  std::vector<float> most(experts, kNever);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::size_t e = 0; e < experts; ++e) most[e] = std::max(most[e], wanted[static_cast<std::size_t>(row) * experts + e]);
  }
  std::vector<std::size_t> order(experts);
  for (std::size_t e = 0; e < experts; ++e) order[e] = e;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return most[a] > most[b]; });
  for (std::size_t i = static_cast<std::size_t>(rule.capacity); i < experts; ++i) {
    for (std::int64_t row = 0; row < rows; ++row) wanted[static_cast<std::size_t>(row) * experts + order[i]] = kNever;
  }
}

}  // namespace

std::int64_t wanted_at_most(const RoutingRule &rule, std::int64_t rows) {
  const std::int64_t chosen = std::min(rule.experts, rows * rule.chosen);
  return rule.capacity == 0 ? chosen : std::min(chosen, (rows + rule.block - 1) / rule.block * rule.capacity);
}

std::size_t routing_bytes(const RoutingRule &rule, std::int64_t rows) {
  return 2 * sizeof(float) * static_cast<std::size_t>(rows * rule.experts);
}

void route(ThreadPool &pool, const RoutingRule &rule, const float *logits, const float *bias, const float *factors,
           std::int64_t rows, float *wanted, std::int64_t *indices, float *weights) {
  const std::int64_t experts = rule.experts, chosen = rule.chosen;
  float *p = wanted + rows * experts;
  if (!rule.sigmoid) softmax(pool, logits, rows, experts, p);
  const std::int64_t share = rule.capacity > 0 ? rule.block : std::max<std::int64_t>(1, kShare / experts);
  const std::int64_t tasks = (rows + share - 1) / share;
  pool.run(tasks, [&](std::int64_t task, int) {
    const std::int64_t first = task * share, count = std::min(share, rows - first);
    if (rule.sigmoid) sigmoid(logits + first * experts, count * experts, p + first * experts);
    for (std::int64_t row = first; row < first + count; ++row) {
      float *own = wanted + row * experts;
      for (std::int64_t e = 0; e < experts; ++e) {
        own[e] = bias == nullptr ? p[row * experts + e] : p[row * experts + e] + bias[e];
      }
      if (rule.groups > 1) keep_groups(rule, own);
    }
    if (rule.capacity > 0) keep_most_wanted(rule, count, wanted + first * experts);
  });
  topk(pool, wanted, rows, experts, chosen, weights, indices);
  pool.run(tasks, [&](std::int64_t task, int) {
    for (std::int64_t row = task * share; row < std::min(rows, (task + 1) * share); ++row) {
      const std::int64_t *index = indices + row * chosen;
      float *weight = weights + row * chosen, sum = kLeastSum;
      for (std::int64_t i = 0; i < chosen; ++i) {
        weight[i] = p[row * experts + index[i]];
        sum += weight[i];
      }
      for (std::int64_t i = 0; i < chosen; ++i) {
        if (rule.normalize) weight[i] /= sum;
        weight[i] *= factors == nullptr ? rule.scale : rule.scale * factors[index[i]];
      }
    }
  });
}

}  // namespace edgekit
