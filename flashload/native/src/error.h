// Failures inside the core are exceptions of one type; abi*.cpp turns them into status codes at the C boundary.
#ifndef EDGEKIT_ERROR_H
#define EDGEKIT_ERROR_H

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "edgekit.h"
#include "printable.h"

namespace edgekit {

// One line of English for the user: what was found, where, and what to do. Names from files and paths may stand in it
// as they are.
class Error : public std::runtime_error {
 public:
  Error(ek_status status, const std::string &message)
      : std::runtime_error(shortened(one_line(message))), status_(status) {}
  ek_status status() const noexcept { return status_; }

  // Of a pass: the one that was refused before anything was computed; -1: none by itself.
  std::int64_t segment = -1;

 private:
  ek_status status_;
};

// Throws an Error whose message is the parts joined as an output stream writes them.
template <typename... Parts>
[[noreturn]] void fail(ek_status status, const Parts &...parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Error(status, message.str());
}

// Runs `body`, whose errors are about the file or folder at `path`, which messages begin with then.
template <typename Body>
auto about_path(const std::string &path, Body &&body) -> decltype(body()) {
  try {
    return body();
  } catch (const Error &error) {
    if (std::string(error.what()).rfind(path, 0) == 0) throw;  // or with a file in the folder
    fail(error.status(), path, ": ", error.what());
  }
}

// Runs `body`, whose errors are about a segment of a pass.
template <typename Body>
void about_segment(std::size_t segment, Body &&body) {
  try {
    body();
  } catch (Error &error) {
    error.segment = static_cast<std::int64_t>(segment);
    throw;
  }
}

}  // namespace edgekit

#endif  // EDGEKIT_ERROR_H
