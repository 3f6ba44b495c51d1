// Turns exceptions into status codes and remembers their messages, for the functions of edgekit.h.
#ifndef EDGEKIT_ABI_GUARD_H
#define EDGEKIT_ABI_GUARD_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "error.h"
#include "session/memory.h"

namespace edgekit {

// For ek_last_error, ek_last_error_bytes and ek_last_error_segment on this thread; returns `status`.
ek_status remember(ek_status status, const char *message, std::uint64_t bytes = 0, std::int64_t segment = -1) noexcept;

// Runs `body`, which may throw, and gives its status.
template <typename Body>
ek_status guarded(Body &&body) noexcept {
  try {
    body();
    return EK_OK;
  } catch (const BudgetError &error) {
    return remember(error.status(), error.what(), error.needed(), error.segment);
  } catch (const Error &error) {
    return remember(error.status(), error.what(), 0, error.segment);
  } catch (const std::bad_alloc &) {
    return remember(EK_OUT_OF_MEMORY, "the system has no memory left; give the session a smaller memory budget");
  } catch (const std::exception &error) {
    return remember(EK_INTERNAL, error.what());
  } catch (...) {
    return remember(EK_INTERNAL, "an error inside the library; please report it");
  }
}

// A struct of a caller, over the defaults in `known`. Throws Error (EK_INVALID_ARGUMENT).
template <typename Struct>
Struct read_struct(const Struct *given, Struct known, const char *name) {
  if (given == nullptr) return known;
  const std::size_t size = given->struct_size;
  if (size < sizeof given->struct_size || size > sizeof known) {
    fail(EK_INVALID_ARGUMENT, name, ": struct_size is ", size, ", this library knows ", sizeof known,
         " bytes; set it to sizeof the struct, and update the library if it is older than the header");
  }
  std::memcpy(static_cast<void *>(&known), given, size);
  return known;
}

// Fills a struct of a caller as far as it has room. Throws Error (EK_INVALID_ARGUMENT).
template <typename Struct>
void write_struct(Struct *wanted, Struct made, const char *name) {
  if (wanted == nullptr) fail(EK_INVALID_ARGUMENT, name, " is null");
  const std::size_t size = wanted->struct_size;
  if (size < sizeof wanted->struct_size) {
    fail(EK_INVALID_ARGUMENT, name, ": struct_size is ", size, "; set it to sizeof the struct");
  }
  made.struct_size = wanted->struct_size;
  std::memcpy(static_cast<void *>(wanted), &made, size < sizeof made ? size : sizeof made);
}

// Gives bytes to a caller, who asks for their number first.
inline void fill(const std::string &bytes, const char *what, void *buffer, std::uint64_t capacity, std::uint64_t &size) {
  size = bytes.size();
  if (buffer == nullptr) return;
  if (capacity < bytes.size())
    fail(EK_BUFFER_TOO_SMALL, what, " has ", bytes.size(), " bytes, the buffer ", capacity);
  std::memcpy(buffer, bytes.data(), bytes.size());
}

}  // namespace edgekit

#endif  // EDGEKIT_ABI_GUARD_H
