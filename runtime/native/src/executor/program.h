// A lowered program: the op list of a manifest entry, run on weights that are bound for one call.
#ifndef EDGEKIT_EXECUTOR_PROGRAM_H
#define EDGEKIT_EXECUTOR_PROGRAM_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "executor/graph.h"
#include "executor/weights.h"
#include "json.h"
#include "kernels/float_ops.h"
#include "thread_pool.h"

namespace edgekit {

// An expert in memory: its index and its weights (those of Program::expert_weights).
struct LoadedExpert {
  std::int64_t index = 0;
  BoundWeights weights;
};

// Hands the experts of a layer to an `experts` op, each once, in any order and in batches as they come: those of a
// batch are computed side by side. Their weights are valid during the call of `use`. `rows` holds how many rows each
// expert of the layer has; those that have none may be left out.
using ForEachExpert = std::function<void(const std::vector<std::int64_t> &rows,
                                         const std::function<void(const std::vector<LoadedExpert> &)> &use)>;

// What a program is given for one call. Every input is contiguous float32 but `phase`.
struct ProgramInputs {
  std::int64_t positions = 0;  // T
  std::int64_t prefix = 0;     // P
  const float *x = nullptr;    // [1, T, H]; `embedded` of self_conditioning
  const float *soft = nullptr;
  Strided prefix_k, prefix_v;  // [1, KV, P, D]
  const float *cos = nullptr;  // [T, R]
  const float *sin = nullptr;
  const float *mask = nullptr;  // [T, P + T] or null: nothing is hidden
  std::int64_t phase = 0;
};

// Where a program's outputs go. `k` and `v` may be null: they are not wanted then.
struct ProgramOutputs {
  float *y = nullptr;  // [1, T, H]; may be the same memory as x
  Strided k, v;        // [1, KV, T, D]
};

class Program {
 public:
  // `entry` is the manifest's. Throws Error: EK_MALFORMED_FILE for references out of range, wrong attributes and
  // shapes that do not fit, EK_UNSUPPORTED_BUNDLE for an op that this library does not know.
  Program(const std::string &name, const Json &entry, const ProgramShapes &shapes);
  ~Program();
  Program(Program &&) noexcept;
  Program &operator=(Program &&) noexcept;

  // What the layer's run, and the run of each of its experts, must hold.
  const std::vector<WeightShape> &weights() const noexcept;
  const std::vector<WeightShape> &expert_weights() const noexcept;
  std::int64_t experts() const noexcept;
  bool uses_mask() const noexcept;
  std::size_t outputs() const noexcept;  // 1: y, or 3: y, k, v

  // Tells of weights that the program will be run with; their form decides what scratch memory holds. `run` with
  // weights of a form that was not told throws Error (EK_INTERNAL).
  void expect(const WeightLayout &layout);
  void expect_expert(const WeightLayout &layout);

  // Bytes of scratch memory for a pass over `positions` after `prefix`, planned once: values whose lifetimes do not
  // overlap share memory. Grows with its arguments, hence enough for shorter passes too.
  std::size_t scratch_bytes(std::int64_t positions, std::int64_t prefix, int threads) const;

  // Throws Error. `scratch` holds at least scratch_bytes(inputs.positions, inputs.prefix, pool.size()), 64-byte
  // aligned. After an error the outputs hold no particular values.
  void run(ThreadPool &pool, const ProgramInputs &inputs, const BoundWeights &weights, const ForEachExpert &experts,
           const ProgramOutputs &outputs, void *scratch) const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// The softcap of the entry `head`, whose only op is vocab_head. Throws Error: EK_MALFORMED_FILE,
// EK_UNSUPPORTED_BUNDLE.
float head_softcap(const Json &entry);

}  // namespace edgekit

#endif  // EDGEKIT_EXECUTOR_PROGRAM_H
