// Which experts a row goes to, and with what weights: `edgekit.export.ops.route`.
#ifndef EDGEKIT_KERNELS_ROUTING_H
#define EDGEKIT_KERNELS_ROUTING_H

#include <cstddef>
#include <cstdint>

#include "thread_pool.h"

namespace edgekit {

struct RoutingRule {
  std::int64_t experts = 0, chosen = 0;  // of a row
  bool sigmoid = false;                  // else softmax
  bool normalize = false;
  float scale = 1;
  std::int64_t groups = 1, kept_groups = 1;
  std::int64_t capacity = 0, block = 0;  // 0: a row chooses by itself
};

// How many experts so many rows go to, at most.
std::int64_t wanted_at_most(const RoutingRule &rule, std::int64_t rows);

// Of `wanted` in route().
std::size_t routing_bytes(const RoutingRule &rule, std::int64_t rows);

// For logits [rows, experts], and bias and factors [experts] or null: indices and weights [rows, chosen], of experts that
// are wanted equally those with the lower index.
void route(ThreadPool &pool, const RoutingRule &rule, const float *logits, const float *bias, const float *factors,
           std::int64_t rows, float *wanted, std::int64_t *indices, float *weights);

}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_ROUTING_H
