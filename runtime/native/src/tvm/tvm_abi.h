// What of the C ABI of apache-tvm-ffi 0.1 the engine uses, as its header tvm/ffi/c_api.h and DLPack 1 define it. The
// libraries are loaded when they are asked for: building the core needs nothing of TVM.
#ifndef EDGEKIT_TVM_ABI_H
#define EDGEKIT_TVM_ABI_H

#include <cstddef>
#include <cstdint>

namespace edgekit::tvm {

constexpr std::uint32_t kAbiMajor = 0, kAbiMinor = 1;

// Devices, as DLPack numbers them.
constexpr std::int32_t kCpu = 1, kCuda = 2, kOpenCl = 4, kMetal = 8;

struct DLDevice {
  std::int32_t type, id;
};

struct DLDataType {
  std::uint8_t code, bits;  // code 0: signed, 1: unsigned, 2: float
  std::uint16_t lanes;
};

struct DLTensor {
  void *data = nullptr;
  DLDevice device = {kCpu, 0};
  std::int32_t ndim = 0;
  DLDataType dtype = {2, 32, 1};
  std::int64_t *shape = nullptr, *strides = nullptr;
  std::uint64_t byte_offset = 0;
};

struct DLManagedTensor {
  DLTensor tensor;
  void *context = nullptr;
  void (*deleter)(DLManagedTensor *self) = nullptr;
};

// Kinds of values; objects are counted.
enum Kind : std::int32_t {
  kNone = 0,
  kInt = 1,
  kBool = 2,
  kFloat = 3,
  kDataType = 5,
  kDevice = 6,
  kTensorPointer = 7,
  kRawString = 8,
  kObjects = 64,
  kTensor = 70,
  kArray = 71,
};

struct Object {
  std::uint64_t references;
  std::int32_t kind;
  std::uint32_t padding;
  void (*deleter)(void *self, int flags);
};

struct Any {
  std::int32_t kind = kNone;
  std::uint32_t padding = 0;
  union {
    std::int64_t integer = 0;
    double number;
    const char *text;
    Object *object;
    DLTensor *tensor;
    DLDevice device;
    DLDataType dtype;
  };
};

struct ByteArray {
  const char *data = nullptr;
  std::size_t size = 0;
};

// What follows the Object of an error, as far as it is read.
struct ErrorCell {
  ByteArray kind, message;
};

struct Version {
  std::uint32_t major = 0, minor = 0, patch = 0;
};

using SafeCall = int (*)(void *self, const Any *arguments, std::int32_t count, Any *result);

// Functions answer 0, or -1 where an error was raised.
struct Functions {
  void (*version)(Version *out) = nullptr;
  int (*get_global)(const ByteArray *name, void **out) = nullptr;
  int (*set_global)(const ByteArray *name, void *function, int replace) = nullptr;
  int (*create_function)(void *self, SafeCall call, void (*deleter)(void *self), void **out) = nullptr;
  int (*call)(void *function, Any *arguments, std::int32_t count, Any *result) = nullptr;
  int (*release)(void *object) = nullptr;
  void (*take_error)(void **error) = nullptr;
  void (*set_error)(const char *kind, const char *message) = nullptr;
  int (*bytes_from)(const ByteArray *bytes, Any *out) = nullptr;
  int (*tensor_from)(DLManagedTensor *from, std::int32_t alignment, std::int32_t contiguous, void **out) = nullptr;
};

}  // namespace edgekit::tvm

#endif  // EDGEKIT_TVM_ABI_H
