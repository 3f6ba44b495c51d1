// An engine over programs that TVM has compiled (export/formats/tvm): layers, the last norm and self-conditioning are
// functions of the bundle's library, which call back for attention and experts, and on processors for products. The
// head is the core's.
#ifndef EDGEKIT_TVM_ENGINE_H
#define EDGEKIT_TVM_ENGINE_H

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "executor/mixture.h"
#include "session/core_head.h"
#include "session/engine.h"
#include "thread_pool.h"
#include "tvm/private_file.h"
#include "tvm/tvm_program.h"
#include "tvm/tvm_runtime.h"

namespace edgekit {

class TvmEngine final : public Engine {
 public:
  // `threads` that compute, the caller's included. `programs` is the manifest's section. One that is made for `planning`
  // alone loads no library, and runs nothing. Throws Error:
  // EK_UNSUPPORTED_BUNDLE for another format, for programs of another machine, and before tvm::load has been called,
  // EK_MALFORMED_FILE where programs and flash file do not fit, those of reading the library.
  TvmEngine(const Bundle &bundle, const Json &programs, int threads, bool planning);
  ~TvmEngine() override;

  EngineBytes bytes(const EngineLengths &lengths) const override;
  std::uint64_t experts_wanted(const BundleChunk &chunk, const EngineLengths &lengths) const override;
  void open(const EngineLengths &lengths) override;
  void layers(const LayersCall &call) override;
  void self_condition(const LoadedUnit &weights, std::int64_t rows, float *x, const float *soft) override;
  void final(const LoadedUnit &weights, std::int64_t rows, float *x) override;
  std::unique_ptr<HeadScores> head(const float *x, std::int64_t rows, const HeadRequest &request,
                                   float *logits) override;
  std::string numerics() const override { return "tvm"; }
  int threads() const override { return threads_; }
  std::uint64_t scratch_held() const override { return scratch_.size(); }

 private:
  struct Inputs;
  // A function of the library, found.
  struct Compiled {
    const tvm::Function *of = nullptr;
    tvm::Value call;
  };
  struct Layer {
    const tvm::Program *program = nullptr;
    MixtureShape mixture;  // without experts where there are none
  };

  void check_unit(const tvm::Function &function, const WeightUnit &unit, const tvm::Expected &arrays);
  void check_attention(const tvm::Program &program, const LayerInfo &info) const;
  void add_layers(const Json &entries);
  void load(const Json &programs);
  const tvm::Program &program(const Json &entries, const std::string &name);
  void find(const tvm::Function &function);
  void one(const std::string &name, const LoadedUnit &weights, std::int64_t rows, const Inputs &given, float *y);

  tvm::Value array(const void *data, const tvm::DLDataType &dtype, const std::vector<std::int64_t> &shape,
                   std::size_t place);
  tvm::Value run(const tvm::Function &function, const tvm::Lengths &lengths, const LoadedUnit &weights,
                 const Inputs &given);
  void read(const tvm::Value &result, float *to, std::int64_t count) const;
  std::uint8_t *scratch(std::size_t bytes);

  // What programs call; the last argument is the result.
  static void provide();
  static void provide_cubin();
  void linear(const std::vector<tvm::Any> &arguments);
  void attention(const std::vector<tvm::Any> &arguments);
  void experts(const std::vector<tvm::Any> &arguments);
  void core_attention(const std::vector<const tvm::DLTensor *> &qkv, float scale, float *y);
  void compiled_attention(const std::vector<const tvm::DLTensor *> &qkv, float *y);
  void core_experts(const Layer &layer, const float *x, const std::int64_t *index, const float *weight,
                    std::int64_t rows, float *y);
  void compiled_experts(const Layer &layer, const float *x, const std::int64_t *index, const float *weight,
                        std::int64_t rows, float *y);

  const Bundle &bundle_;
  const int threads_;
  bool core_ = true;
  tvm::DLDevice device_ = {tvm::kCpu, 0};
  std::unique_ptr<CoreHead> head_;
  std::map<std::string, tvm::Program> programs_;
  std::vector<Layer> layers_;  // by number in the model
  std::unordered_map<const WeightUnit *, WeightLayout> experts_;
  std::unique_ptr<tvm::PrivateFile> file_;  // these in order: what is of another goes first
  tvm::Value library_, machine_;
  std::unordered_map<const tvm::Function *, tvm::Value> functions_;
  std::string cubin_;  // kernels for NVIDIA GPUs
  std::unique_ptr<ThreadPool> pool_;
  AlignedMemory scratch_;
  std::vector<AlignedMemory> staged_;  // inputs that are not aligned, by place
  // The call of layers that is under way.
  const LayersCall *call_ = nullptr;
  std::uint64_t unit_bytes_ = 0;  // of the largest unit
};

}  // namespace edgekit

#endif  // EDGEKIT_TVM_ENGINE_H
