// What is known of a program before it runs: its graph, the forms of its weights, and where its buffers go.
#ifndef EDGEKIT_EXECUTOR_PROGRAM_PLAN_H
#define EDGEKIT_EXECUTOR_PROGRAM_PLAN_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/graph.h"
#include "executor/mixture.h"
#include "executor/scratch_plan.h"

namespace edgekit {

// Forms in which a weight was told to come.
struct Forms {
  bool rounded = false;   // 4 or 8 bits: products with rounded activations
  bool floating = false;  // 16 bits

  void add(int bits) { (bits < 16 ? rounded : floating) = true; }
  bool has(int bits) const { return bits < 16 ? rounded : floating; }
};

struct ProgramPlan {
  explicit ProgramPlan(Graph parsed);

  void expect(const WeightLayout &layout);
  void expect_expert(const WeightLayout &layout);

  // Buffers in this order: storage of the graph, rounded values, and one per op for what it needs while it runs.
  std::size_t rounded_buffer(int rounded) const { return graph.storage.size() + static_cast<std::size_t>(rounded); }
  std::size_t op_buffer(std::size_t op) const { return graph.storage.size() + graph.quantized.size() + op; }
  std::vector<std::size_t> sizes(std::int64_t positions, int threads) const;

  // Offsets of all buffers; returns the bytes of them together.
  std::size_t place(std::int64_t positions, int threads, std::vector<std::size_t> &offsets) const {
    return order.place(sizes(positions, threads), offsets);
  }

  MixtureShape mixture_shape(const Op &op) const;

  const Value &value(int id) const { return graph.values[static_cast<std::size_t>(id)]; }

  Graph graph;
  std::vector<Forms> forms;  // per weight
  std::vector<Forms> expert_forms;
  std::vector<bool> apart;  // per op: the weights of a linear_gated come in forms that are not computed side by side

 private:
  bool reads_rounded(const Op &op) const;
  void replan();

  ScratchPlan order;
};

}  // namespace edgekit

#endif  // EDGEKIT_EXECUTOR_PROGRAM_PLAN_H
