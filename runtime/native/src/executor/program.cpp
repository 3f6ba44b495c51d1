#include "executor/program.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "error.h"
#include "executor/program_call.h"
#include "executor/program_plan.h"
#include "kernels/gemm.h"

namespace edgekit {

struct Program::Implementation {
  ProgramPlan plan;
};

Program::Program(const std::string &name, const Json &entry, const ProgramShapes &shapes)
    : implementation_(new Implementation{ProgramPlan(parse_graph(name, entry, shapes))}) {}

Program::~Program() = default;
Program::Program(Program &&) noexcept = default;
Program &Program::operator=(Program &&) noexcept = default;

const std::vector<WeightShape> &Program::weights() const noexcept { return implementation_->plan.graph.weights; }

const std::vector<WeightShape> &Program::expert_weights() const noexcept {
  return implementation_->plan.graph.expert_weights;
}

std::int64_t Program::experts() const noexcept { return implementation_->plan.graph.experts; }

std::int64_t Program::experts_wanted(std::int64_t rows, std::int64_t segments) const noexcept {
  std::int64_t most = experts();
  for (const Op &op : implementation_->plan.graph.ops) {
    if (op.kind == OpKind::route) most = std::min(most, segments * wanted_at_most(op.routing, rows));
  }
  return most;
}

bool Program::uses_mask() const noexcept { return implementation_->plan.graph.uses_mask; }

std::size_t Program::outputs() const noexcept { return implementation_->plan.graph.outputs.size(); }

void Program::expect(const WeightLayout &layout) { implementation_->plan.expect(layout); }

void Program::expect_expert(const WeightLayout &layout) { implementation_->plan.expect_expert(layout); }

std::size_t Program::scratch_bytes(std::int64_t positions, int threads) const {
  std::vector<std::size_t> offsets;
  return implementation_->plan.place(positions, threads, offsets) + gemm_scratch_bytes(threads);
}

void Program::run(ThreadPool &pool, const ProgramInputs &inputs, const BoundWeights &weights,
                  const ForEachExpert &experts, float *y, void *scratch) const {
  const ProgramPlan &plan = implementation_->plan;
  for (std::size_t i = 0; i < plan.forms.size(); ++i) {
    const bool is_matrix = plan.graph.weights[i].is_matrix;
    if (is_matrix && !plan.forms[i].has(weights.matrix(i).bits)) {
      fail(EK_INTERNAL, "program ", plan.graph.name, ": weight ", plan.graph.weights[i].name,
           " comes in a form that was not planned for; please report it");
    }
  }
  ProgramCall(plan, pool, inputs, weights, experts, y, scratch).run();
}

float head_softcap(const Json &entry) {
  const std::vector<Json> &ops = entry.at("ops").array();
  if (ops.size() != 1 || ops[0].at("op").string() != "vocab_head") {
    fail(EK_UNSUPPORTED_BUNDLE, "program head is not one vocab_head; update edgekit or export the bundle again");
  }
  const float softcap = static_cast<float>(ops[0].at("softcap").number());
  if (!std::isfinite(softcap) || softcap < 0) {
    fail(EK_MALFORMED_FILE, "program head: softcap is ", softcap, "; export the bundle again");
  }
  return softcap;
}

}  // namespace edgekit
