// Which process made an object whose work is done by threads.
#ifndef EDGEKIT_OWNER_PROCESS_H
#define EDGEKIT_OWNER_PROCESS_H

#ifndef _WIN32
#include <sys/types.h>
#include <unistd.h>
#endif

#include "edgekit.h"
#include "error.h"

namespace edgekit {

// A child of fork() has a copy of the object's memory and none of its threads: it would wait for them for ever, and its
// io_uring is the parent's. It may not use the object, nor end it; Windows has no fork.
class OwnerProcess {
 public:
#ifdef _WIN32
  bool here() const noexcept { return true; }
#else
  bool here() const noexcept { return getpid() == made_by_; }
#endif

  // Throws Error (EK_INVALID_STATE) in another process.
  void check(const char *what) const {
    if (!here()) {
      fail(EK_INVALID_STATE, what, " was opened before fork(), and its threads stayed in the parent process; open one "
           "of its own in each process");
    }
  }

#ifndef _WIN32
 private:
  pid_t made_by_ = getpid();
#endif
};

}  // namespace edgekit

#endif  // EDGEKIT_OWNER_PROCESS_H
