// ONNX Runtime's C interface, as far as it is used here: places of functions in its table, which stay what they are from
// version to version, and numbers. Strings are UTF-8 but for paths on Windows.
#ifndef EDGEKIT_ONNX_ORT_ABI_H
#define EDGEKIT_ONNX_ORT_ABI_H

#include <cstddef>
#include <cstdint>

namespace edgekit::ort {

// The first version whose providers are libraries of their own.
constexpr std::uint32_t kVersion = 22;

struct Env;
struct Status;
struct Session;
struct SessionOptions;
struct Value;
struct MemoryInfo;
struct EpDevice;
struct HardwareDevice;

#if defined(_WIN32)
using PathChar = wchar_t;
#else
using PathChar = char;
#endif

struct ApiBase {
  const void *const *(*get_api)(std::uint32_t version);
  const char *(*get_version)();
};

// Of functions in the table.
enum Place : std::size_t {
  kGetErrorMessage = 2,
  kCreateEnv = 3,
  kDisableTelemetryEvents = 6,
  kCreateSession = 7,
  kRun = 9,
  kCreateSessionOptions = 10,
  kDisableCpuMemArena = 19,
  kSetSessionLogSeverityLevel = 22,
  kCreateTensorWithData = 49,
  kCreateCpuMemoryInfo = 69,
  kReleaseEnv = 92,
  kReleaseStatus = 93,
  kReleaseMemoryInfo = 94,
  kReleaseSession = 95,
  kReleaseValue = 96,
  kReleaseSessionOptions = 100,
  kAddSessionConfigEntry = 130,
  kRegisterProviderLibrary = 301,
  kGetEpDevices = 303,
  kAppendProvider = 304,
  kHardwareDeviceType = 307,
  kEpName = 312,
  kEpDeviceHardware = 316,
};

constexpr int kFatal = 4;             // of logs
constexpr int kDeviceAllocator = 0, kDefaultMemory = 0;
constexpr int kFloat = 1, kInt32 = 6, kFloat16 = 10;  // types of elements
constexpr int kProcessor = 0;          // of hardware

}  // namespace edgekit::ort

#endif  // EDGEKIT_ONNX_ORT_ABI_H
