// An engine outside of the library, behind the functions of ek_engine.
#ifndef EDGEKIT_SESSION_PLUGGED_ENGINE_H
#define EDGEKIT_SESSION_PLUGGED_ENGINE_H

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "edgekit.h"
#include "error.h"
#include "session/engine.h"

namespace edgekit {

class PluggedEngine final : public Engine {
 public:
  // What the table points at must outlive this object. Throws Error: EK_INVALID_ARGUMENT for a table without the functions
  // that the bundle needs.
  PluggedEngine(const Bundle &bundle, const ek_engine &table);
  ~PluggedEngine() override;

  EngineMemory &memory() const override { return *memory_; }
  std::uint64_t submitted() const override { return submitted_; }
  void wait(std::uint64_t count) override;
  EngineBytes bytes(const EngineLengths &lengths) const override;
  void open(const EngineLengths &) override {}
  void layers(const LayersCall &call) override;
  void self_condition(const LoadedUnit &weights, std::int64_t rows, float *x, const float *soft) override;
  void final(const LoadedUnit &weights, std::int64_t rows, float *x) override;
  std::unique_ptr<HeadScores> head(const float *x, std::int64_t rows, const HeadRequest &request,
                                   float *logits) override;
  void lend(const std::uint8_t *memory, std::uint64_t bytes) override;
  void take_back(const std::uint8_t *memory, std::uint64_t bytes) noexcept override;
  bool keep(const LoadedUnit &unit) override;
  std::string numerics() const override { return name_; }
  int threads() const override { return 0; }
  std::uint64_t scratch_held() const override { return 0; }

  // A unit as the engine sees it; lives as long as this object, or until the next call.
  ek_weights weights(const LoadedUnit &loaded);
  void tile(ek_tile_call &call);
  bool submits() const { return table_.wait != nullptr; }
  const Bundle &bundle() const { return bundle_; }

 private:
  class Memory;

  // What the engine says of a failure, behind a colon, or nothing.
  std::string said() const;
  // Throws Error (EK_ENGINE_FAILED) unless a function was done, or has begun.
  void done(std::int32_t answer, const char *doing, const std::string &what) const;
  void begun(std::int32_t answer, const char *doing, const std::string &what);

  const Bundle &bundle_;
  const ek_engine table_;
  const std::string name_;
  std::unordered_map<const Run *, std::vector<ek_flash_tensor>> tensors_;
  std::unique_ptr<EngineMemory> own_memory_;  // null: it has none
  EngineMemory *memory_ = &session_memory();
  std::uint64_t submitted_ = 0, waited_ = 0;
  std::optional<Error> failed_;  // while memory went back, for the next call that may throw
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_PLUGGED_ENGINE_H
