#include "onnx/ort_runtime.h"

#include <cstring>
#include <utility>

#include "error.h"
#include "shared_library.h"
#if defined(_WIN32)
#include "wide_path.h"
#endif

namespace edgekit::ort {
namespace {

#if defined(_WIN32)
std::wstring path_of(const std::string &path) { return wide(path); }
#else
const std::string &path_of(const std::string &path) { return path; }
#endif

// Gives back what a function has made.
template <typename Object>
class Held {
 public:
  using Release = void (*)(Object *);
  explicit Held(Release release) : release_(release) {}
  ~Held() {
    if (object_ != nullptr) release_(object_);
  }
  Held(const Held &) = delete;
  Held &operator=(const Held &) = delete;

  Object **place() { return &object_; }
  Object *get() const { return object_; }
  // It is not given back.
  Object *keep() { return std::exchange(object_, nullptr); }

 private:
  const Release release_;
  Object *object_ = nullptr;
};

}  // namespace

void Runtime::done(Status *status) const {
  if (status == nullptr) return;
  const std::string said = function<const char *(*)(const Status *)>(kGetErrorMessage)(status);
  function<void (*)(Status *)>(kReleaseStatus)(status);
  fail(EK_ENGINE_FAILED, said);
}

Runtime::Runtime(const std::string &library, const std::string &provider, const std::string &name) {
  void *const loaded = open_library(library, Symbols::own);
  const auto base = reinterpret_cast<const ApiBase *(*)()>(symbol_of(loaded, "OrtGetApiBase"));
  if (base == nullptr) fail(EK_UNSUPPORTED_VERSION, library, ": is not ONNX Runtime; name its library");
  api_ = base()->get_api(kVersion);
  if (api_ == nullptr) {
    fail(EK_UNSUPPORTED_VERSION, library, ": is ONNX Runtime ", base()->get_version(), "; install 1.", kVersion, " or later");
  }
  Held<Env> env(function<void (*)(Env *)>(kReleaseEnv));
  Held<MemoryInfo> memory(function<void (*)(MemoryInfo *)>(kReleaseMemoryInfo));
  done(function<Status *(*)(int, const char *, Env **)>(kCreateEnv)(kFatal, "edgekit", env.place()));
  done(function<Status *(*)(const Env *)>(kDisableTelemetryEvents)(env.get()));
  done(function<Status *(*)(int, int, MemoryInfo **)>(kCreateCpuMemoryInfo)(kDeviceAllocator, kDefaultMemory, memory.place()));
  find_device(env.get(), name);
  if (device_ == nullptr) {  // else the application has registered it: a second time is refused
    try {
      done(function<Status *(*)(Env *, const char *, const PathChar *)>(kRegisterProviderLibrary)(
          env.get(), name.c_str(), path_of(provider).c_str()));
    } catch (const Error &error) {
      // So it says where one is registered that found no device.
      const bool taken = std::strstr(error.what(), "already registered") != nullptr;
      if (!taken) fail(EK_OPEN_FAILED, provider, ": ONNX Runtime ", base()->get_version(), " cannot load the provider: ", error.what());
    }
    find_device(env.get(), name);
  }
  env_ = env.keep();
  memory_ = memory.keep();
  if (device_ == nullptr) return;
  const auto *hardware = function<const HardwareDevice *(*)(const EpDevice *)>(kEpDeviceHardware)(device_);
  emulated_ = function<int (*)(const HardwareDevice *)>(kHardwareDeviceType)(hardware) == kProcessor;
}

void Runtime::find_device(Env *env, const std::string &name) {
  const EpDevice *const *devices = nullptr;
  std::size_t count = 0;
  done(function<Status *(*)(const Env *, const EpDevice *const **, std::size_t *)>(kGetEpDevices)(env, &devices, &count));
  for (std::size_t i = 0; i < count && device_ == nullptr; ++i) {
    if (function<const char *(*)(const EpDevice *)>(kEpName)(devices[i]) == name) device_ = devices[i];
  }
}

std::unique_ptr<Program> Runtime::open(const std::string &file, const Settings &settings, const Settings *provider) const {
  Held<SessionOptions> options(function<void (*)(SessionOptions *)>(kReleaseSessionOptions));
  done(function<Status *(*)(SessionOptions **)>(kCreateSessionOptions)(options.place()));
  done(function<Status *(*)(SessionOptions *, int)>(kSetSessionLogSeverityLevel)(options.get(), kFatal));
  done(function<Status *(*)(SessionOptions *)>(kDisableCpuMemArena)(options.get()));
  for (const auto &[key, value] : settings) {
    done(function<Status *(*)(SessionOptions *, const char *, const char *)>(kAddSessionConfigEntry)(
        options.get(), key.c_str(), value.c_str()));
  }
  if (provider != nullptr) {
    std::vector<const char *> keys, values;
    for (const auto &[key, value] : *provider) {
      keys.push_back(key.c_str());
      values.push_back(value.c_str());
    }
    done(function<Status *(*)(SessionOptions *, Env *, const EpDevice *const *, std::size_t, const char *const *,
                              const char *const *, std::size_t)>(kAppendProvider)(options.get(), env_, &device_, 1, keys.data(),
                                                                                  values.data(), keys.size()));
  }
  Session *session = nullptr;
  done(function<Status *(*)(const Env *, const PathChar *, const SessionOptions *, Session **)>(kCreateSession)(
      env_, path_of(file).c_str(), options.get(), &session));
  return std::unique_ptr<Program>(new Program(*this, session));
}

Program::~Program() { runtime_.function<void (*)(Session *)>(kReleaseSession)(session_); }

void Program::run(const std::vector<Array> &inputs, const std::vector<Array> &outputs) {
  struct Values {
    explicit Values(const Runtime &runtime) : runtime(runtime) {}
    ~Values() {
      for (Value *each : values) runtime.function<void (*)(Value *)>(kReleaseValue)(each);
    }
    void add(const std::vector<Array> &arrays) {
      for (const Array &array : arrays) {
        Value *value = nullptr;
        runtime.done(runtime.function<Status *(*)(const MemoryInfo *, void *, std::size_t, const std::int64_t *, std::size_t, int,
                                                  Value **)>(kCreateTensorWithData)(
            runtime.memory_, array.data, array.bytes, array.shape->data(), array.shape->size(), array.type, &value));
        values.push_back(value);
        names.push_back(array.name);
      }
    }
    const Runtime &runtime;
    std::vector<Value *> values;
    std::vector<const char *> names;
  };
  Values in(runtime_), out(runtime_);
  in.add(inputs);
  out.add(outputs);
  runtime_.done(runtime_.function<Status *(*)(Session *, const void *, const char *const *, const Value *const *, std::size_t,
                                              const char *const *, std::size_t, Value **)>(kRun)(
      session_, nullptr, in.names.data(), in.values.data(), in.values.size(), out.names.data(), out.values.size(),
      out.values.data()));
}

}  // namespace edgekit::ort
