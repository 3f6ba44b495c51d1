// The engine of this library: lowered programs on its own kernels (layout `native-1`).
#ifndef EDGEKIT_SESSION_NATIVE_ENGINE_H
#define EDGEKIT_SESSION_NATIVE_ENGINE_H

#include <set>
#include <string>
#include <vector>

#include "session/core_head.h"
#include "session/core_programs.h"
#include "session/engine.h"
#include "thread_pool.h"

namespace edgekit {

class NativeEngine final : public Engine {
 public:
  // `threads` that compute, the caller's included. Throws Error: EK_UNSUPPORTED_BUNDLE for programs of another format,
  // EK_MALFORMED_FILE where programs, manifest and flash file do not fit.
  NativeEngine(Bundle &bundle, int threads);

  EngineBytes bytes(const EngineLengths &lengths) const override;
  std::uint64_t experts_wanted(const BundleChunk &chunk, const EngineLengths &lengths) const override;
  void open(const EngineLengths &lengths) override;
  void layers(const LayersCall &call) override;
  void self_condition(const LoadedUnit &weights, std::int64_t rows, float *x, const float *soft) override;
  void final(const LoadedUnit &weights, std::int64_t rows, float *x) override;
  std::unique_ptr<HeadScores> head(const float *x, std::int64_t rows, const HeadRequest &request,
                                   float *logits) override;
  std::string numerics() const override { return "native"; }
  int threads() const override { return threads_; }
  std::uint64_t scratch_held() const override { return programs_.scratch_held(); }

 private:
  const Program &single(const Json &entries, const std::string &name, const WeightUnit &unit, std::set<Input> given);
  void add_layers(const Json &entries);

  const Bundle &bundle_;
  const int threads_;
  CorePrograms programs_;
  std::vector<const Program *> layers_;  // by number in the model
  const Program *final_ = nullptr, *self_conditioning_ = nullptr;
  std::unique_ptr<CoreHead> head_;
  std::unique_ptr<ThreadPool> pool_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_NATIVE_ENGINE_H
