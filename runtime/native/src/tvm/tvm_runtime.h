// TVM's runtime, loaded on request: functions, values and arrays of it.
#ifndef EDGEKIT_TVM_RUNTIME_H
#define EDGEKIT_TVM_RUNTIME_H

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tvm/tvm_abi.h"

namespace edgekit::tvm {

// Loads TVM's libraries into the process, for good: `ffi` (libtvm_ffi) and `runtime` (libtvm_runtime), paths or names
// that the system searches; empty: their usual names. Throws Error (EK_OPEN_FAILED, EK_UNSUPPORTED_VERSION).
void load(const std::string &ffi, const std::string &runtime);

// Whether `load` has been called.
bool is_loaded();

// Throws Error (EK_UNSUPPORTED_BUNDLE) before `load` has been called.
const Functions &loaded();

// Has TVM know a kind of device, such as "cuda", whose part of the runtime may be a library of its own beside it. Gives why
// it does not, or nothing where it does.
std::optional<std::string> load_device(const std::string &kind);

// A value that is given back to TVM when it goes.
class Value {
 public:
  Value() = default;
  explicit Value(const Any &any) : any_(any) {}
  Value(Value &&other) noexcept : any_(std::exchange(other.any_, Any())) {}
  Value &operator=(Value &&other) noexcept;
  ~Value();

  // An object that TVM has made.
  static Value object(Kind kind, void *handle);

  const Any &any() const noexcept { return any_; }
  // The value is the caller's from now on.
  Any release() noexcept { return std::exchange(any_, Any()); }
  bool none() const noexcept { return any_.kind == kNone; }
  void *handle() const noexcept { return any_.object; }
  // Of an array in TVM's memory or ours, or a pointer to one; null for what is none.
  const DLTensor *tensor() const noexcept;

 private:
  Any any_;
};

// The array that an argument is; null for what is none.
const DLTensor *tensor_of(const Any &any) noexcept;

Any integer(std::int64_t value);
Any text(const char *value);  // which must outlive the call

// Calls a function. Throws Error (EK_ENGINE_FAILED) with what TVM says, or what a function of `provide` has thrown
// within it.
Value call(const Value &function, std::vector<Any> arguments);

// A function of TVM's by its global name; none if there is none. TVM's table of them is not made for several threads:
// this and `provide` take turns.
Value global(const std::string &name);

// The module in a file. Throws Error (EK_ENGINE_FAILED).
Value module_in(const std::string &path);

// A function of a module; none if it has none of that name.
Value function_of(const Value &module, const std::string &name);

// An element of an array of TVM's.
Value element(const Value &array, std::int64_t index);

// Makes `body` a global function, for good; what it throws, the call that led to it throws again.
using Body = std::function<Value(const std::vector<Any> &arguments)>;
void provide(const std::string &name, Body body);

// A copy of bytes.
Value bytes(const std::string &data);

// An array over memory of ours, aligned to 64 bytes, which must stay while TVM uses it.
Value view(const void *data, DLDataType dtype, std::vector<std::int64_t> shape);

// A new array on a device, with undefined values.
Value allocate(DLDataType dtype, const std::vector<std::int64_t> &shape, DLDevice device);

// Copies one array into another of the same size, one of them on `device` if not both are the processor's, and waits
// for it.
void copy(const Any &from, const Any &to, DLDevice device);

}  // namespace edgekit::tvm

#endif  // EDGEKIT_TVM_RUNTIME_H
