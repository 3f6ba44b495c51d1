// Lowered programs of a bundle, bound to its runs, on the core's own kernels.
#ifndef EDGEKIT_SESSION_CORE_PROGRAMS_H
#define EDGEKIT_SESSION_CORE_PROGRAMS_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "executor/program.h"
#include "executor/weights.h"
#include "session/engine.h"
#include "thread_pool.h"

namespace edgekit {

class CorePrograms {
 public:
  explicit CorePrograms(const Bundle &bundle) : bundle_(bundle) {}

  // Reads a program, once: layers that share one are of one shape. Throws Error (EK_MALFORMED_FILE, EK_UNSUPPORTED_BUNDLE).
  Program &add(const Json &entries, const std::string &name, const ProgramShapes &shapes, std::size_t outputs);

  // Tells a program, by its name, of a unit that it will be run with, and of the experts of a layer that it mixes. Throws
  // Error (EK_MALFORMED_FILE, EK_UNSUPPORTED_BUNDLE).
  void expect(const std::string &program, const WeightUnit &unit);
  void expect_experts(const std::string &program, const BundleChunk &chunk);

  // Bytes of scratch memory for a call over `positions` of any of them.
  std::uint64_t scratch_bytes(std::int64_t positions, int threads) const;
  void reserve(std::uint64_t bytes) { scratch_ = AlignedMemory(static_cast<std::size_t>(bytes)); }
  std::uint64_t scratch_held() const { return scratch_.size(); }

  // y may be the same memory as x of `given`. Throws Error.
  void run(ThreadPool &pool, const Program &program, const ProgramInputs &given, const LoadedUnit &weights, float *y);

  // A program of a layer on all rows of a call, in place; `weights` are the program's. `dense`: products of the layer
  // [rows, hidden] each, where the program takes some. Throws Error.
  void run_layer(ThreadPool &pool, const Program &program, const LayersCall &call, const LoadedUnit &weights,
                 std::vector<const float *> dense = {});

 private:
  BoundWeights bind(const LoadedUnit &loaded) const { return {layouts_.at(loaded.unit), loaded.data}; }
  void run(ThreadPool &pool, const Program &program, const ProgramInputs &given, const LoadedUnit &weights,
           const ForEachExpert &experts, float *y);

  const Bundle &bundle_;
  std::map<std::string, Program> programs_;
  std::map<std::string, ProgramShapes> shapes_;
  std::unordered_map<const WeightUnit *, WeightLayout> layouts_;
  AlignedMemory scratch_;
  std::vector<std::int64_t> phase_;  // of the rows at hand
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_CORE_PROGRAMS_H
