// One run of a program: where its values are, and the op at hand.
#ifndef EDGEKIT_EXECUTOR_PROGRAM_CALL_H
#define EDGEKIT_EXECUTOR_PROGRAM_CALL_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/program.h"
#include "executor/program_plan.h"
#include "kernels/gemm.h"
#include "kernels/matrix.h"

namespace edgekit {

class ProgramCall {
 public:
  ProgramCall(const ProgramPlan &plan, ThreadPool &pool, const ProgramInputs &inputs, const BoundWeights &weights,
              const ForEachExpert &experts, float *y, void *scratch);

  void run();

 private:
  void step(std::size_t place);
  void run_linear(const Op &op, std::size_t place);
  void add_adapter(const Op &op, std::size_t place, std::int64_t first, std::int64_t count, float factor);
  void run_linear_gated(const Op &op, std::size_t place);
  void run_attention(const Op &op, std::size_t place);
  void run_experts(const Op &op, std::size_t place);
  void run_route(const Op &op, std::size_t place);
  void run_binary(const Op &op);
  void run_lookup(const Op &op);
  void product(const Op &op, const Matrix &matrix, const Addends &addends, float *y);
  const QuantizedRows &rounded(const Op &op);
  void deliver();
  bool in_place(int output) const;
  void keep(int output, const Strided ProgramSegment::*to);

  const void *input(Input input) const;
  const Value &value(int id) const { return plan_.value(id); }
  float *floats(int id) const { return static_cast<float *>(data_[static_cast<std::size_t>(value(id).storage)]); }
  const std::int64_t *indices(int id) const {
    return static_cast<const std::int64_t *>(data_[static_cast<std::size_t>(value(id).storage)]);
  }
  Strided array(int id) const;
  std::int64_t count(int id) const { return elements(value(id).array.shape).at(inputs_.positions); }
  std::int64_t columns(int id) const { return value(id).array.shape.back().at(inputs_.positions); }
  std::int64_t rows(int id) const { return count(id) / columns(id); }
  const float *vector(int weight) const {
    return weight == kNone ? nullptr : weights_.vector(static_cast<std::size_t>(weight));
  }

  const ProgramPlan &plan_;
  const Graph &graph_;
  ThreadPool &pool_;
  const ProgramInputs &inputs_;
  const BoundWeights &weights_;
  const ForEachExpert &experts_;
  float *const y_;
  std::vector<std::size_t> offsets_;  // of the plan's buffers
  std::uint8_t *scratch_ = nullptr;
  void *gemm_scratch_ = nullptr;
  std::vector<void *> data_;            // per storage
  std::vector<QuantizedRows> rounded_;  // made when first asked for
};

}  // namespace edgekit

#endif  // EDGEKIT_EXECUTOR_PROGRAM_CALL_H
