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
#include "kernels/attention.h"
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

// Rows first..first+count of a call: what they see in attention, and where their keys and values go.
struct ProgramSegment {
  std::int64_t first = 0, count = 0;
  std::vector<KeyPiece> kept;   // seen before the segment's own keys, P of them
  const float *mask = nullptr;  // [count, P + count] or null: nothing is hidden
  Strided k, v;  // [1, KV, count, D], without data: not wanted. They are there before later segments look at their `kept`
};

// What a program is given for one call. Every array is contiguous float32 but `phase`.
struct ProgramInputs {
  std::int64_t positions = 0;  // T
  const float *x = nullptr;    // [1, T, H]; `embedded` of self_conditioning
  const float *soft = nullptr;
  const float *cos = nullptr;  // [T, R]
  const float *sin = nullptr;
  const float *query_scale = nullptr;    // [T, 1]
  const float *adapter = nullptr;        // [T, 1]
  const std::int64_t *phase = nullptr;   // [T]
  std::vector<const float *> dense;      // [1, T, H] each: products of a layer that were computed elsewhere
  std::vector<ProgramSegment> segments;  // of a layer: in the order of their rows, which they cover
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
  // That have rows in a call over so many segments of so many rows, at most.
  std::int64_t experts_wanted(std::int64_t rows, std::int64_t segments) const noexcept;
  bool uses_mask() const noexcept;
  std::size_t outputs() const noexcept;  // 1: y, or 3: y, k, v

  // Tells of weights that the program will be run with; their form decides what scratch memory holds. `run` with
  // weights of a form that was not told throws Error (EK_INTERNAL).
  void expect(const WeightLayout &layout);
  void expect_expert(const WeightLayout &layout);

  // Bytes of scratch memory for a call over `positions`, planned once: values whose lifetimes do not overlap share
  // memory. Grows with its arguments, hence enough for shorter calls too.
  std::size_t scratch_bytes(std::int64_t positions, int threads) const;

  // y [1, T, H] may be the same memory as x. Throws Error. `scratch` holds at least scratch_bytes of these positions, 64-byte
  // aligned. After an error the results hold no particular values.
  void run(ThreadPool &pool, const ProgramInputs &inputs, const BoundWeights &weights, const ForEachExpert &experts, float *y,
           void *scratch) const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// The softcap of the entry `head`, whose only op is vocab_head. Throws Error: EK_MALFORMED_FILE,
// EK_UNSUPPORTED_BUNDLE.
float head_softcap(const Json &entry);

}  // namespace edgekit

#endif  // EDGEKIT_EXECUTOR_PROGRAM_H
