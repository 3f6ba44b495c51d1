#include "onnx/qnn_executor.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "bundle_folder.h"
#include "bundle_set.h"
#include "error.h"
#include "onnx/program_check.h"
#include "packages/package_engine.h"
#include "portable_names.h"
#if defined(__ANDROID__)
#include <sys/system_properties.h>
#endif

namespace edgekit::qnn {
namespace {

constexpr const char *kRegistered = "QNNExecutionProvider";
constexpr const char *kOnNpu = ".npu.onnx", *kOnProcessor = ".processor.onnx", *kCompiled = ".ctx.onnx";

std::mutex mutex;
// As long as the process, also where it found no device: ONNX Runtime takes no second provider of a name.
std::unique_ptr<ort::Runtime> runtime;
std::string provider_here;
bool loaded = false;
ort::Settings told, told_of_sources;    // to the provider
std::string chip_here;

// Such as "sm8650": what the system calls the chip.
std::string own_chip() {
  std::string found;
#if defined(__ANDROID__)
  char value[PROP_VALUE_MAX] = "";
  if (__system_property_get("ro.soc.model", value) > 0) found = value;
#endif
  return found;
}

bool ends_with(const std::string &text, const std::string &end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::string name_of(const std::string &path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

void load(const Libraries &libraries) {
  std::lock_guard<std::mutex> lock(mutex);
  if (loaded) return;
  if (runtime == nullptr) {
    runtime = std::make_unique<ort::Runtime>(libraries.onnxruntime, libraries.provider, kRegistered);
    provider_here = libraries.provider;
  }
  if (!runtime->has_device()) {
    fail(EK_ENGINE_FAILED, provider_here, ": finds neither an NPU nor its emulation on this system");
  }
  told = told_of_sources = {{"backend_path", libraries.backend}};
  if (runtime->emulated() && !libraries.soc_model.empty()) told_of_sources.emplace_back("soc_model", libraries.soc_model);
  chip_here = small_letters(libraries.chip.empty() ? own_chip() : libraries.chip);
  loaded = true;
}

bool is_loaded() {
  std::lock_guard<std::mutex> lock(mutex);
  return loaded;
}

std::string chip() {
  std::lock_guard<std::mutex> lock(mutex);
  return chip_here;
}

std::unique_ptr<Engine> engine(Bundle &bundle, int threads) {
  if (!is_loaded()) {
    fail(EK_UNSUPPORTED_BUNDLE, bundle.path(), ": is for Qualcomm's NPU, whose libraries this process has not loaded: load ",
         "them first (Java: new Npu().load(), C: ek_qnn_load), or open a bundle of the format native");
  }
  return std::make_unique<PackageEngine>(bundle, bundle.take_programs(), threads, [&bundle](const PackagePrograms &programs) {
    return std::make_unique<QnnExecutor>(bundle.path(), programs);
  });
}

namespace {

int type_of(PortType type) {
  switch (type) {
    case PortType::float16: return ort::kFloat16;
    case PortType::int32: return ort::kInt32;
    default: return ort::kFloat;
  }
}

}  // namespace

// A package that is open; its functions are opened when they are first called.
class QnnExecutor::Opened final : public OpenPackage {
 public:
  Opened(const QnnExecutor &executor, const Package &package) : executor_(executor), package_(package) {}

  ort::Program &program(const PackageFunction &function) {
    std::unique_ptr<ort::Program> &own = programs_[&function];
    if (own == nullptr) own = executor_.program(package_, function);
    return *own;
  }

  void call(const PackageFunction &function, const std::vector<void *> &inputs, const std::vector<void *> &outputs) override {
    try {
      program(function).run(arrays(function.inputs, inputs), arrays(function.outputs, outputs));
    } catch (const Error &error) {
      if (error.status() != EK_ENGINE_FAILED) throw;
      fail(EK_ENGINE_FAILED, executor_.folder_, "/", package_.path, ": QNN failed in function ", function.name, ": ", error.what());
    }
  }

 private:
  static std::vector<ort::Array> arrays(const std::vector<Port> &ports, const std::vector<void *> &data) {
    std::vector<ort::Array> out;
    for (std::size_t i = 0; i < ports.size(); ++i) {
      out.push_back({ports[i].name.c_str(), data[i], ports[i].bytes(), &ports[i].shape, type_of(ports[i].type)});
    }
    return out;
  }

  const QnnExecutor &executor_;
  const Package &package_;
  std::unordered_map<const PackageFunction *, std::unique_ptr<ort::Program>> programs_;
};

QnnExecutor::QnnExecutor(std::string folder, const PackagePrograms &programs) : folder_(std::move(folder)) {
  const std::string own = chip();
  const auto found = std::find_if(programs.compiled().begin(), programs.compiled().end(),
                                  [&own](const auto &each) { return is_chip(own, each.first); });
  if (own.empty() || found == programs.compiled().end()) return;
  for (const std::string &file : found->second) {
    // compiled/CHIP/PACKAGE/FILE
    const std::size_t end = file.rfind('/');
    const std::string folder_of_file = end == std::string::npos ? std::string() : file.substr(0, end);
    compiled_[name_of(folder_of_file)].push_back(file);
  }
}

const std::vector<std::string> &QnnExecutor::compiled(const Package &package) const {
  static const std::vector<std::string> none;
  const auto found = compiled_.find(package.name);
  return found == compiled_.end() ? none : found->second;
}

std::vector<std::string> QnnExecutor::files(const Package &package) const {
  return compiled(package).empty() ? package.files : compiled(package);
}

std::unique_ptr<OpenPackage> QnnExecutor::open(const Package &package,
                                               const std::vector<const PackageFunction *> &expected) {
  auto opened = std::make_unique<Opened>(*this, package);
  for (const PackageFunction *function : expected) opened->program(*function);
  return opened;
}

std::unique_ptr<ort::Program> QnnExecutor::program(const Package &package, const PackageFunction &function) const {
  const std::vector<std::string> offered = files(package);
  std::string file;
  for (const char *end : {kCompiled, kOnNpu, kOnProcessor}) {
    for (const std::string &each : offered) {
      if (file.empty() && name_of(each) == function.name + end) file = each;
    }
  }
  if (file.empty()) {
    fail(EK_ENGINE_FAILED, folder_, "/", package.path, ": has no function ", function.name, "; copy or export the bundle again");
  }
  const bool is_compiled = ends_with(file, kCompiled), on_npu = is_compiled || ends_with(file, kOnNpu);
  try {
    const std::string model = read_folder_file(folder_, file, kMostProgramBytes);
    if (is_compiled) {
      std::vector<std::string> beside;
      // The compiler's paths are relative to the model.
      const std::string own = file.substr(0, file.size() - name_of(file).size());
      for (const std::string &each : offered) {
        if (each.size() > own.size() && each.compare(0, own.size(), own) == 0) beside.push_back(each.substr(own.size()));
      }
      check_context(model, beside);
    } else {
      check_onnx(model, kFormat);
    }
  } catch (const Error &error) {
    if (error.status() != EK_MALFORMED_FILE) throw;
    fail(EK_ENGINE_FAILED, folder_, "/", file, ": ", error.what(), "; export the bundle again");
  }
  ort::Settings settings = {{"session.load_model_format", "ONNX"}};
  // What the NPU does not take is an error, and not the processor's without a word.
  if (on_npu) settings.emplace_back("session.disable_cpu_ep_fallback", "1");
  // ep.share_ep_contexts would have functions of a binary share its weights, and is left alone: what one session leaves for
  // another to take is known by its name in the whole process, where packages that are opened again, and other bundles, have
  // the same names.
  try {
    return runtime->open(folder_ + "/" + file, settings, is_compiled ? &told : on_npu ? &told_of_sources : nullptr);
  } catch (const Error &error) {
    if (error.status() != EK_ENGINE_FAILED) throw;
    fail(EK_ENGINE_FAILED, folder_, "/", file, ": QNN cannot load it: ", error.what());
  }
}

}  // namespace edgekit::qnn
