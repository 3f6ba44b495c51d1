// Qualcomm's NPU by ONNX Runtime and its provider for QNN, and beside it the processor for what is the processor's.
//
// A package is a folder: see runtime/engines/qnn/programs.py. Where it was compiled for the chip at hand, that is opened in
// its place (export/formats/qnn/contexts.py).
#ifndef EDGEKIT_ONNX_QNN_EXECUTOR_H
#define EDGEKIT_ONNX_QNN_EXECUTOR_H

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "onnx/ort_runtime.h"
#include "packages/package_executor.h"
#include "session/engine.h"

namespace edgekit::qnn {

constexpr const char *kFormat = "qnn";

#if defined(_WIN32)
constexpr const char *kOnnxRuntime = "onnxruntime.dll", *kProvider = "onnxruntime_providers_qnn.dll", *kBackend = "QnnHtp.dll";
#else
constexpr const char *kOnnxRuntime = "libonnxruntime.so", *kProvider = "libonnxruntime_providers_qnn.so",
                     *kBackend = "libQnnHtp.so";
#endif

// What ek_qnn_options says.
struct Libraries {
  std::string onnxruntime = kOnnxRuntime, provider = kProvider, backend = kBackend;
  std::string chip;        // as compiled packages name it; empty: the one that the system tells
  std::string soc_model;   // for an emulation: the chip's number
};

// Loads the libraries, for good: only the first call that succeeds has an effect. Throws Error: see ort::Runtime.
void load(const Libraries &libraries);

bool is_loaded();

// The chip at hand, as compiled packages name it; empty before `load` was called, and where nobody has told.
std::string chip();

// Of a bundle of this format; `threads` are the head's. Throws Error: EK_UNSUPPORTED_BUNDLE before `load` was called, those of PackagePrograms.
std::unique_ptr<Engine> engine(Bundle &bundle, int threads);

class QnnExecutor final : public PackageExecutor {
 public:
  // After `load`. `folder` is the bundle's.
  QnnExecutor(std::string folder, const PackagePrograms &programs);

  std::vector<std::string> files(const Package &package) const override;
  std::unique_ptr<OpenPackage> open(const Package &package, const std::vector<const PackageFunction *> &expected) override;

 private:
  class Opened;
  std::unique_ptr<ort::Program> program(const Package &package, const PackageFunction &function) const;
  const std::vector<std::string> &compiled(const Package &package) const;

  const std::string folder_;
  std::unordered_map<std::string, std::vector<std::string>> compiled_;  // files for this chip, by package
};

}  // namespace edgekit::qnn

#endif  // EDGEKIT_ONNX_QNN_EXECUTOR_H
