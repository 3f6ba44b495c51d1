#include "shared_library.h"

#include "error.h"

#if defined(_WIN32)
#include <windows.h>

#include "wide_path.h"
#else
#include <dlfcn.h>
#endif

namespace edgekit {

#if defined(_WIN32)
void *open_library(const std::string &path, Symbols) {
  // Libraries beside it are found too.
  const DWORD flags = path.find_first_of("/\\") == std::string::npos ? 0 : LOAD_WITH_ALTERED_SEARCH_PATH;
  HMODULE found = LoadLibraryExW(wide(path).c_str(), nullptr, flags);
  if (found == nullptr) fail(EK_OPEN_FAILED, path, ": cannot be loaded (error ", GetLastError(), ")");
  return reinterpret_cast<void *>(found);
}

void *symbol_of(void *library, const char *name) {
  return reinterpret_cast<void *>(GetProcAddress(reinterpret_cast<HMODULE>(library), name));
}
#else
void *open_library(const std::string &path, Symbols symbols) {
  void *found = dlopen(path.c_str(), RTLD_NOW | (symbols == Symbols::shared ? RTLD_GLOBAL : RTLD_LOCAL));
  if (found == nullptr) {
    const char *said = dlerror();
    fail(EK_OPEN_FAILED, "a library cannot be loaded: ", said == nullptr ? path : std::string(said));
  }
  return found;
}

void *symbol_of(void *library, const char *name) { return dlsym(library, name); }
#endif

}  // namespace edgekit
