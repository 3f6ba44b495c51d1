#include "executor/program_plan.h"

#include <algorithm>
#include <utility>

#include "kernels/attention.h"
#include "kernels/gemm.h"

namespace edgekit {
namespace {

// Length for which the order of buffers in memory is chosen.
constexpr std::int64_t kExamplePositions = 256;
constexpr int kExampleThreads = 4;

bool add_forms(std::vector<Forms> &forms, const WeightLayout &layout) {
  bool changed = false;
  for (std::size_t i = 0; i < forms.size(); ++i) {
    const int bits = layout.bits(i);
    if (bits == 0 || forms[i].has(bits)) continue;
    forms[i].add(bits);
    changed = true;
  }
  return changed;
}

}  // namespace

ProgramPlan::ProgramPlan(Graph parsed)
    : graph(std::move(parsed)),
      forms(graph.weights.size()),
      expert_forms(graph.expert_weights.size()),
      apart(graph.ops.size(), false) {
  replan();
}

void ProgramPlan::expect(const WeightLayout &layout) {
  bool changed = add_forms(forms, layout);
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op &op = graph.ops[i];
    if (op.kind != OpKind::linear_gated || apart[i]) continue;
    const std::size_t gate = static_cast<std::size_t>(op.weights[0]), up = static_cast<std::size_t>(op.weights[1]);
    apart[i] = layout.bits(gate) == 16 || !layout.same_form(gate, up);
    changed = changed || apart[i];
  }
  if (changed) replan();
}

void ProgramPlan::expect_expert(const WeightLayout &layout) {
  if (add_forms(expert_forms, layout)) replan();
}

MixtureShape ProgramPlan::mixture_shape(const Op &op) const {
  MixtureShape shape;
  shape.experts = op.count;
  shape.chosen = value(op.in[1]).array.shape[1].factor;
  shape.hidden = graph.expert_weights[0].columns;
  shape.width = graph.expert_weights[1].columns;
  shape.activation = op.activation;
  for (const Forms &each : expert_forms) {
    shape.rounded = shape.rounded || each.rounded;
    shape.floating = shape.floating || each.floating;
  }
  return shape;
}

bool ProgramPlan::reads_rounded(const Op &op) const {
  if (op.quantized.empty() || op.quantized[0] == kNone) return false;
  if (op.kind == OpKind::experts) return expert_forms[0].rounded;
  return std::any_of(op.weights.begin(), op.weights.end(),
                     [this](int w) { return w != kNone && forms[static_cast<std::size_t>(w)].rounded; });
}

std::vector<std::size_t> ProgramPlan::sizes(std::int64_t positions, int threads) const {
  std::vector<std::size_t> out(op_buffer(graph.ops.size()), 0);
  for (std::size_t i = 0; i < graph.storage.size(); ++i) {
    const Storage &storage = graph.storage[i];
    if (storage.kind == Storage::Kind::scratch) {
      out[i] = static_cast<std::size_t>(storage.element * storage.count.at(positions));
    }
  }
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op &op = graph.ops[i];
    if (reads_rounded(op)) {
      const std::int64_t columns = graph.quantized[static_cast<std::size_t>(op.quantized[0])].columns;
      const std::int64_t count = elements(value(op.in[0]).array.shape).at(positions);
      out[rounded_buffer(op.quantized[0])] = quantized_bytes(count / columns, columns);
    }
    std::size_t &own = out[op_buffer(i)];
    if (op.kind == OpKind::attention) {
      own = attention_scratch_bytes(threads, value(op.in[0]).array.shape[3].factor);
    } else if (op.kind == OpKind::route) {
      own = routing_bytes(op.routing, positions);
    } else if (op.kind == OpKind::experts) {
      own = mixture_bytes(mixture_shape(op), positions, threads);
    } else if (op.rank != 0) {
      const Shape &x = value(op.in[0]).array.shape;
      own = sizeof(float) * static_cast<std::size_t>(elements(x).at(positions) / x.back().factor * op.rank);
    } else if (apart[i]) {
      own = sizeof(float) * static_cast<std::size_t>(elements(value(op.out[0]).array.shape).at(positions));
    }
  }
  return out;
}

void ProgramPlan::replan() {
  std::vector<Lifetime> lifetimes;
  for (const Storage &storage : graph.storage) lifetimes.push_back({storage.first, storage.last});
  for (const QuantizedUse &use : graph.quantized) lifetimes.push_back({use.first, use.last});
  for (int i = 0; i < static_cast<int>(graph.ops.size()); ++i) lifetimes.push_back({i, i});
  order = ScratchPlan(std::move(lifetimes), sizes(kExamplePositions, kExampleThreads));
}

}  // namespace edgekit
