// Where reads are put to be done by others: a pool of threads that block in the system's read call, or io_uring.
#ifndef EDGEKIT_READ_QUEUE_H
#define EDGEKIT_READ_QUEUE_H

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "block_file.h"
#include "error.h"

namespace edgekit {

// Who wants a group of reads. Called from the queue's threads, from several at once.
class ReadOwner {
 public:
  virtual ~ReadOwner() = default;

  // Asked once, right before the system is asked for a part's first byte; false: the part is to be skipped.
  virtual bool begin() noexcept = 0;

  // What is left to do after a part ended: nothing, or finish(), which may take long when it hashes what was read.
  enum class Left { parts, finish, long_finish };
  // Once per part, when nothing writes to its memory any more. `error`: null for a part that is there or skipped.
  virtual Left ended(const Error *error) noexcept = 0;

  // Once, after ended() said so.
  virtual void finish() noexcept = 0;
};

// An exact-length read of a part.
struct ReadRequest {
  std::uint8_t *out = nullptr;
  std::uint64_t size = 0;
  std::uint64_t offset = 0;
  std::shared_ptr<ReadOwner> owner;
};

class ReadQueue {
 public:
  // Waits until everything that was pushed has ended and its owners were told.
  virtual ~ReadQueue() = default;

  // Returns at once. Parts begin in the order of the pushes. Throws only std::bad_alloc, and nothing was pushed then.
  virtual void push(std::vector<ReadRequest> requests) = 0;
};

// `threads` threads with one blocking read each. The file must outlive the queue. Throws Error (EK_OUT_OF_MEMORY).
std::unique_ptr<ReadQueue> make_read_pool(BlockFile &file, int threads);

// Linux's io_uring with up to `depth` reads in the kernel. Null where the system does not have or allow it; `reason`
// then is one phrase that says why, and empty on other systems than Linux.
std::unique_ptr<ReadQueue> make_io_uring(BlockFile &file, int depth, std::string &reason);

}  // namespace edgekit

#endif  // EDGEKIT_READ_QUEUE_H
