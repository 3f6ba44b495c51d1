// Shared libraries that are loaded while the process runs.
#ifndef EDGEKIT_SHARED_LIBRARY_H
#define EDGEKIT_SHARED_LIBRARY_H

#include <string>

namespace edgekit {

// Loads a library for good, its symbols for those that are loaded later. UTF-8. Throws Error (EK_OPEN_FAILED) with what
// the system says.
void *open_library(const std::string &path);

// Null: it has none of that name.
void *symbol_of(void *library, const char *name);

}  // namespace edgekit

#endif  // EDGEKIT_SHARED_LIBRARY_H
