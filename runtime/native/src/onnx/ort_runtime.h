// ONNX Runtime in this process, with a provider that is a library of its own.
#ifndef EDGEKIT_ONNX_ORT_RUNTIME_H
#define EDGEKIT_ONNX_ORT_RUNTIME_H

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "onnx/ort_abi.h"

namespace edgekit::ort {

// What a provider is told, and the settings of sessions, by name.
using Settings = std::vector<std::pair<std::string, std::string>>;

// An array [shape] of the caller's memory.
struct Array {
  const char *name = nullptr;
  void *data = nullptr;
  std::size_t bytes = 0;
  const std::vector<std::int64_t> *shape = nullptr;
  int type = kFloat;
};

class Runtime;

// A program that is open.
class Program {
 public:
  // Throws Error (EK_ENGINE_FAILED) with what ONNX Runtime says.
  void run(const std::vector<Array> &inputs, const std::vector<Array> &outputs);
  ~Program();
  Program(const Program &) = delete;
  Program &operator=(const Program &) = delete;

 private:
  friend class Runtime;
  Program(const Runtime &runtime, Session *session) : runtime_(runtime), session_(session) {}
  const Runtime &runtime_;
  Session *const session_;
};

class Runtime {
 public:
  // Loads ONNX Runtime's library and the provider's, which is `name` there, for good; a provider of this name that the
  // process has registered already is taken as it is. Throws Error: EK_OPEN_FAILED, EK_UNSUPPORTED_VERSION for a library that
  // is older than kVersion or is another one.
  Runtime(const std::string &library, const std::string &provider, const std::string &name);
  Runtime(const Runtime &) = delete;
  Runtime &operator=(const Runtime &) = delete;

  bool has_device() const { return device_ != nullptr; }  // without one nothing can be opened

  // Whether the provider computes on the processor, as an emulation does.
  bool emulated() const { return emulated_; }

  // Opens a program from a file. `provider`: what the provider is told; none: the processor computes. Throws Error
  // (EK_ENGINE_FAILED) with what ONNX Runtime says.
  std::unique_ptr<Program> open(const std::string &file, const Settings &settings, const Settings *provider) const;

 private:
  friend class Program;
  template <typename Function>
  Function function(Place place) const {
    return reinterpret_cast<Function>(const_cast<void *>(api_[place]));
  }
  void done(Status *status) const;  // throws Error where there is one
  void find_device(Env *env, const std::string &name);

  const void *const *api_ = nullptr;
  Env *env_ = nullptr;
  MemoryInfo *memory_ = nullptr;
  const EpDevice *device_ = nullptr;
  bool emulated_ = false;
};

}  // namespace edgekit::ort

#endif  // EDGEKIT_ONNX_ORT_RUNTIME_H
