// The functions of edgekit.h. They translate between the C ABI and the C++ inside and hold no logic of their own.
#include "edgekit.h"

#include <cstring>

#include "cpu.h"

uint32_t ek_abi_version(void) noexcept { return EK_ABI_VERSION; }

const char *ek_version(void) noexcept { return EK_VERSION_STRING; }

const char *ek_status_message(ek_status status) noexcept {
  switch (status) {
    case EK_OK:
      return "no error";
    case EK_INVALID_ARGUMENT:
      return "an argument has a value that this function does not accept";
    case EK_BUFFER_TOO_SMALL:
      return "the caller's buffer is too small for the answer";
    case EK_OUT_OF_MEMORY:
      return "the system has no memory left";
    case EK_OPEN_FAILED:
      return "a file cannot be opened";
    case EK_READ_FAILED:
      return "the system reported an error while reading a file";
    case EK_TRUNCATED_FILE:
      return "a file is shorter than its header says";
    case EK_FILE_CHANGED:
      return "a file changed while it was in use";
    case EK_CHECKSUM_MISMATCH:
      return "the bytes of a file are not those that were written";
    case EK_MALFORMED_FILE:
      return "a file does not follow its format";
    case EK_UNSUPPORTED_VERSION:
      return "a file has a version that this library does not read";
    case EK_UNSUPPORTED_BUNDLE:
      return "a bundle needs something that this library does not do";
    case EK_BUDGET_EXCEEDED:
      return "the memory budget is too small";
    case EK_NOT_FINITE:
      return "the model's scores are not finite";
    case EK_STOPPED:
      return "a callback asked to stop";
    case EK_INVALID_STATE:
      return "the call does not fit what was called before it";
    case EK_INTERNAL:
      return "an error inside the library";
    case EK_INVALID_PROMPT:
      return "the prompt is no prompt of this model";
    case EK_PROMPT_TOO_LONG:
      return "the prompt and its answer are too long for the model";
    case EK_ENGINE_FAILED:
      return "an engine outside of the library failed";
    case EK_WRITE_FAILED:
      return "a file cannot be written";
    case EK_FETCH_FAILED:
      return "a source did not give what it was asked for";
    default:
      return "a status that this version of the library does not know";
  }
}

ek_status ek_cpu_features(char *buffer, size_t size) noexcept {
  if (buffer == nullptr || size == 0) return EK_INVALID_ARGUMENT;
  // Features cannot change while the process runs, and cpuid traps in a virtual machine: ask once. C++ makes the
  // initialisation of a local static safe against other threads.
  static const std::uint64_t found = edgekit::detect_cpu_features();

  size_t used = 0;
  for (std::size_t i = 0; i < edgekit::cpu_feature_count(); ++i) {
    if (((found >> i) & 1u) == 0) continue;
    const char *name = edgekit::cpu_feature_name(i);
    const size_t length = std::strlen(name);
    const size_t separator = used == 0 ? 0 : 1;
    // One byte stays free for the NUL.
    if (separator + length + 1 > size - used) {
      buffer[0] = '\0';
      return EK_BUFFER_TOO_SMALL;
    }
    if (separator != 0) buffer[used++] = ' ';
    std::memcpy(buffer + used, name, length);
    used += length;
  }
  buffer[used] = '\0';
  return EK_OK;
}
