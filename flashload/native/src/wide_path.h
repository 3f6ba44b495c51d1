// Paths as Windows takes them.
#ifndef EDGEKIT_WIDE_PATH_H
#define EDGEKIT_WIDE_PATH_H

#if defined(_WIN32)

#include <string>

namespace edgekit {

// A path in UTF-8. Throws Error (EK_OPEN_FAILED) for one that is empty, holds a null byte or is not UTF-8.
std::wstring wide(const std::string &path);

}  // namespace edgekit

#endif

#endif  // EDGEKIT_WIDE_PATH_H
