// Shared libraries that are loaded while the process runs.
#ifndef EDGEKIT_SHARED_LIBRARY_H
#define EDGEKIT_SHARED_LIBRARY_H

#include <string>

namespace edgekit {

// Whether libraries that are loaded later see the symbols of one.
enum class Symbols { shared, own };

// Loads a library for good. UTF-8. Throws Error (EK_OPEN_FAILED) with what the system says.
void *open_library(const std::string &path, Symbols symbols = Symbols::shared);

// Null: it has none of that name.
void *symbol_of(void *library, const char *name);

}  // namespace edgekit

#endif  // EDGEKIT_SHARED_LIBRARY_H
