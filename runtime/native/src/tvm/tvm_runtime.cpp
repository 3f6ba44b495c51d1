#include "tvm/tvm_runtime.h"

#include <exception>
#include <memory>
#include <mutex>

#include "error.h"
#include "shared_library.h"

namespace edgekit::tvm {
namespace {

#if defined(_WIN32)
constexpr const char *kFfi = "tvm_ffi.dll", *kRuntime = "tvm_runtime.dll";
#elif defined(__APPLE__)
constexpr const char *kFfi = "libtvm_ffi.dylib", *kRuntime = "libtvm_runtime.dylib";
#else
constexpr const char *kFfi = "libtvm_ffi.so", *kRuntime = "libtvm_runtime.so";
#endif
constexpr std::int32_t kAlignment = 64;

// TVM's own functions by their global names, which it would look up in every call.
struct Known {
  Value load_module, function_of_module, element, shape, allocate, copy, synchronize;
};

std::mutex mutex;
bool ready = false;
std::string runtime_path;
Functions functions;
// Stays as long as the process: TVM's libraries do too.
Known *known = nullptr;

// What a function of ours has thrown, until the call that led to it has failed.
thread_local std::exception_ptr thrown;

void find_all(void *library, const std::string &name) {
  const auto find = [&](auto &place, const char *symbol) {
    void *found = symbol_of(library, symbol);
    if (found == nullptr) {
      fail(EK_UNSUPPORTED_VERSION, name, ": has no function ", symbol, "; install apache-tvm-ffi ", kAbiMajor, ".",
           kAbiMinor, ", which edgekit knows");
    }
    place = reinterpret_cast<std::remove_reference_t<decltype(place)>>(found);
  };
  find(functions.version, "TVMFFIGetVersion");
  Version version;
  functions.version(&version);
  if (version.major != kAbiMajor || version.minor != kAbiMinor) {
    fail(EK_UNSUPPORTED_VERSION, name, ": is of apache-tvm-ffi ", version.major, ".", version.minor, "; install ",
         kAbiMajor, ".", kAbiMinor, ", which edgekit knows");
  }
  find(functions.get_global, "TVMFFIFunctionGetGlobal");
  find(functions.set_global, "TVMFFIFunctionSetGlobal");
  find(functions.create_function, "TVMFFIFunctionCreate");
  find(functions.call, "TVMFFIFunctionCall");
  find(functions.release, "TVMFFIObjectDecRef");
  find(functions.take_error, "TVMFFIErrorMoveFromRaised");
  find(functions.set_error, "TVMFFIErrorSetRaisedFromCStr");
  find(functions.bytes_from, "TVMFFIBytesFromByteArray");
  find(functions.tensor_from, "TVMFFITensorFromDLPack");
}

// Throws Error with what TVM has raised last.
[[noreturn]] void raise() {
  void *error = nullptr;
  functions.take_error(&error);
  if (error == nullptr) fail(EK_ENGINE_FAILED, "TVM failed and does not say why; export the bundle again");
  const Value held = Value::object(kObjects, error);
  const auto &cell = *reinterpret_cast<const ErrorCell *>(static_cast<const char *>(error) + sizeof(Object));
  fail(EK_ENGINE_FAILED, "TVM failed: ", std::string(cell.message.data, cell.message.size));
}

void done(int answer) {
  if (answer != 0) raise();
}

int call_body(void *self, const Any *arguments, std::int32_t count, Any *result) {
  *result = Any();
  try {
    *result = (*static_cast<const Body *>(self))(std::vector<Any>(arguments, arguments + count)).release();
    return 0;
  } catch (...) {
    thrown = std::current_exception();
    functions.set_error("RuntimeError", "a function of edgekit failed");
    return -1;
  }
}

// The memory of a view's sizes.
struct Viewed {
  DLManagedTensor managed;
  std::vector<std::int64_t> shape, strides;
};

Value find_global(const std::string &name) {
  const ByteArray bytes{name.data(), name.size()};
  void *found = nullptr;
  done(functions.get_global(&bytes, &found));
  return found == nullptr ? Value() : Value::object(kObjects, found);
}

Known find_known() {
  Known found;
  const std::pair<Value *, const char *> wanted[] = {{&found.load_module, "ffi.ModuleLoadFromFile"},
                                                     {&found.function_of_module, "ffi.ModuleGetFunction"},
                                                     {&found.element, "ffi.ArrayGetItem"},
                                                     {&found.shape, "ffi.Shape"},
                                                     {&found.allocate, "runtime.TVMTensorAllocWithScope"},
                                                     {&found.copy, "runtime.TVMTensorCopyFromTo"},
                                                     {&found.synchronize, "runtime.Device_StreamSync"}};
  for (const auto &[place, name] : wanted) {
    *place = find_global(name);
    if (place->none()) {
      fail(EK_UNSUPPORTED_VERSION, "TVM's runtime has no function ", name, "; install the version that edgekit names");
    }
  }
  return found;
}

}  // namespace

void load(const std::string &ffi, const std::string &runtime) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (ready) return;
  const std::string name = ffi.empty() ? kFfi : ffi;
  find_all(open_library(name), name);
  runtime_path = runtime.empty() ? kRuntime : runtime;
  open_library(runtime_path);
  if (known == nullptr) known = new Known(find_known());
  ready = true;
}

bool is_loaded() {
  const std::lock_guard<std::mutex> lock(mutex);
  return ready;
}

const Functions &loaded() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!ready) {
    fail(EK_UNSUPPORTED_BUNDLE, "its programs are machine code, which is run where the application trusts whoever made the ",
         "bundle as if it were part of it (C: ek_tvm_load) alone: open a bundle of the format native");
  }
  return functions;
}

std::optional<std::string> load_device(const std::string &kind) {
  const std::string api = "device_api." + kind;
  if (!global(api).none()) return std::nullopt;
  std::string path = runtime_path;
  path.insert(path.rfind('.'), "_" + kind);
  try {
    open_library(path);
  } catch (const Error &error) {
    return error.what();
  }
  if (global(api).none()) return path + " does not bring it";
  return std::nullopt;
}

Value::~Value() {
  if (any_.kind >= kObjects) functions.release(any_.object);
}

Value &Value::operator=(Value &&other) noexcept {
  std::swap(any_, other.any_);
  return *this;
}

Value Value::object(Kind kind, void *handle) {
  Any any;
  any.kind = kind;
  any.object = static_cast<Object *>(handle);
  return Value(any);
}

const DLTensor *tensor_of(const Any &any) noexcept {
  if (any.kind == kTensorPointer) return any.tensor;
  if (any.kind != kTensor) return nullptr;
  return reinterpret_cast<const DLTensor *>(reinterpret_cast<const char *>(any.object) + sizeof(Object));
}

const DLTensor *Value::tensor() const noexcept { return tensor_of(any_); }

Any integer(std::int64_t value) {
  Any any;
  any.kind = kInt;
  any.integer = value;
  return any;
}

Any text(const char *value) {
  Any any;
  any.kind = kRawString;
  any.text = value;
  return any;
}

Value call(const Value &function, std::vector<Any> arguments) {
  Any result;
  if (function.none()) {
    fail(EK_MALFORMED_FILE, "a bundle's library lacks a function that edgekit calls; export the bundle again");
  }
  thrown = nullptr;
  const int answer =
      functions.call(function.handle(), arguments.data(), static_cast<std::int32_t>(arguments.size()), &result);
  if (answer != 0 && thrown) std::rethrow_exception(std::exchange(thrown, nullptr));
  done(answer);
  return Value(result);
}

Value global(const std::string &name) {
  const std::lock_guard<std::mutex> lock(mutex);
  return find_global(name);
}

Value module_in(const std::string &path) { return call(known->load_module, {text(path.c_str())}); }

Value function_of(const Value &module, const std::string &name) {
  Any imports;
  imports.kind = kBool;
  imports.integer = 0;
  return call(known->function_of_module, {module.any(), text(name.c_str()), imports});
}

Value element(const Value &array, std::int64_t index) { return call(known->element, {array.any(), integer(index)}); }

void provide(const std::string &name, Body body) {
  auto own = std::make_unique<Body>(std::move(body));
  void *function = nullptr;
  done(functions.create_function(own.get(), call_body, [](void *self) { delete static_cast<Body *>(self); }, &function));
  own.release();
  const Value held = Value::object(kObjects, function);
  const ByteArray bytes{name.data(), name.size()};
  const std::lock_guard<std::mutex> lock(mutex);
  done(functions.set_global(&bytes, function, 1));
}

Value bytes(const std::string &data) {
  const ByteArray given{data.data(), data.size()};
  Any made;
  done(functions.bytes_from(&given, &made));
  return Value(made);
}

Value view(const void *data, DLDataType dtype, std::vector<std::int64_t> shape) {
  auto own = std::make_unique<Viewed>();
  own->shape = std::move(shape);
  own->strides.resize(own->shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = own->shape.size(); i-- > 0; stride *= own->shape[i]) own->strides[i] = stride;
  DLTensor &tensor = own->managed.tensor;
  tensor.data = const_cast<void *>(data);
  tensor.dtype = dtype;
  tensor.ndim = static_cast<std::int32_t>(own->shape.size());
  tensor.shape = own->shape.data();
  tensor.strides = own->strides.data();
  own->managed.context = own.get();
  own->managed.deleter = [](DLManagedTensor *self) { delete static_cast<Viewed *>(self->context); };
  void *made = nullptr;
  done(functions.tensor_from(&own->managed, kAlignment, 1, &made));
  own.release();
  return Value::object(kTensor, made);
}

Value allocate(DLDataType dtype, const std::vector<std::int64_t> &shape, DLDevice device) {
  std::vector<Any> sizes;
  for (const std::int64_t size : shape) sizes.push_back(integer(size));
  const Value shape_object = call(known->shape, std::move(sizes));
  Any type, where;
  type.kind = kDataType;
  type.dtype = dtype;
  where.kind = kDevice;
  where.device = device;
  return call(known->allocate, {shape_object.any(), type, where, Any()});
}

void copy(const Any &from, const Any &to, DLDevice device) {
  call(known->copy, {from, to});
  if (device.type == kCpu) return;
  Any where;
  where.kind = kDevice;
  where.device = device;
  call(known->synchronize, {where, integer(0)});
}

}  // namespace edgekit::tvm
