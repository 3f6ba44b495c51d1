// Reads through Linux's io_uring, by raw system calls. One thread owns the ring: it submits, waits and tells owners,
// so that neither the consumer nor another reader ever blocks in the kernel for it. Hashing has a thread of its own.
#include "read_queue.h"

#if !defined(__linux__)

namespace edgekit {

std::unique_ptr<ReadQueue> make_io_uring(BlockFile &, int, std::string &) { return nullptr; }

}  // namespace edgekit

#elif defined(__ANDROID__)

namespace edgekit {

std::unique_ptr<ReadQueue> make_io_uring(BlockFile &, int, std::string &reason) {
  reason = "Android kills applications that ask for it";
  return nullptr;
}

}  // namespace edgekit

#else

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "flash_file.h"
#include "io_uring_queues.h"
#include "read_pool.h"

namespace edgekit {
namespace {

class Uring final : public ReadQueue {
 public:
  explicit Uring(BlockFile &file) : file_(file), queues_(file.system()) {}

  // Empty, or why not; nothing else may be called then.
  std::string open(int depth) {
    std::string refused = queues_.open(static_cast<unsigned>(depth) + 1);  // one for the read that wakes the thread
    if (refused.empty()) refused = probe();
    if (!refused.empty()) return refused;
    wake_ = ::eventfd(0, EFD_CLOEXEC);
    if (wake_ < 0) return "no event descriptor is left (" + uring::describe_error(errno) + ")";
    slots_.resize(std::min<std::size_t>(static_cast<std::size_t>(depth), queues_.capacity() - 1));
    for (std::size_t slot = slots_.size(); slot > 0; --slot) free_.push_back(slot - 1);
    finisher_ = std::make_unique<JobThreads<std::shared_ptr<ReadOwner>>>(
        1, [](std::shared_ptr<ReadOwner> &owner) { owner->finish(); });
    try {
      thread_ = std::thread([this] { serve(); });
    } catch (const std::system_error &error) {
      return std::string("no thread can be started (") + error.what() + ")";
    }
    return "";
  }

  ~Uring() override {
    if (thread_.joinable()) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
      }
      wake();
      thread_.join();
    }
    finisher_.reset();
    if (wake_ >= 0) ::close(wake_);
  }

  void push(std::vector<ReadRequest> requests) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const std::size_t before = waiting_.size();
      try {
        for (ReadRequest &request : requests) waiting_.push_back(std::move(request));
      } catch (...) {
        waiting_.resize(before);
        throw;
      }
    }
    wake();
  }

 private:
  struct Slot {
    ReadRequest request;
    BlockRead read;
  };

  static constexpr std::uint64_t kWakeTag = UINT64_MAX;
  static constexpr std::size_t kProbeBytes = 4096;

  // Whether the kernel reads this file this way: older ones lack the operation, some file systems refuse it.
  std::string probe() {
    AlignedMemory block(kProbeBytes);
    queues_.add(file_.system().descriptor(file_.direct()), block.data(), kProbeBytes, 0, 0, 0);
    std::uint64_t tag = 0;
    std::int64_t result = 0;
    for (;;) {
      const int code = queues_.enter();
      if (queues_.completed(tag, result)) break;
      // Once accepted, the read will write to `block`: it has to be waited for.
      if (code != 0 && code != EINTR && queues_.take_back(tag)) {
        return "the system refuses to submit (" + uring::describe_error(code) + ")";
      }
    }
    return result < 0 ? "a read through it failed (" + uring::describe_error(static_cast<int>(-result)) + ")" : "";
  }

  void wake() {
    const std::uint64_t one = 1;
    // Fails only when the counter is full, which wakes the thread as well.
    [[maybe_unused]] const ::ssize_t written = ::write(wake_, &one, sizeof one);
  }

  void serve() {
    arm_wake();
    while (start_waiting()) {
      const int code = queues_.enter();
      if (code != 0 && code != EINTR && code != EAGAIN && code != EBUSY) {
        leave_kernel();
        continue;
      }
      reap();
      // Out of kernel memory for requests: what is under way has to end first.
      if (code == EAGAIN || code == EBUSY) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  void reap() {
    std::uint64_t tag;
    std::int64_t result;
    while (queues_.completed(tag, result)) {
      if (tag == kWakeTag) {
        if (!refused_) arm_wake();
      } else {
        go_on(static_cast<std::size_t>(tag), result);
      }
    }
  }

  void arm_wake() { queues_.add(wake_, &woken_, sizeof woken_, 0, 0, kWakeTag); }

  // Starts what waits as far as there are slots. False when everything is done and nothing will come.
  bool start_waiting() {
    for (;;) {
      ReadRequest request;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        if (waiting_.empty()) return !stopping_ || free_.size() < slots_.size();
        if (free_.empty()) return true;
        request = std::move(waiting_.front());
        waiting_.pop_front();
      }
      if (!request.owner->begin()) {
        end(request, nullptr);
        continue;
      }
      const std::size_t slot = free_.back();
      free_.pop_back();
      slots_[slot].read = file_.begin(request.out, request.size, request.offset, false);
      slots_[slot].request = std::move(request);
      start(slot);
    }
  }

  void start(std::size_t slot) {
    const BlockRead &read = slots_[slot].read;
    // A read from the page cache would be copied by this thread inside the submitting call, one after the other.
    const std::uint8_t flags = read.direct ? 0 : uring::kFlagAsync;
    queues_.add(file_.system().descriptor(read.direct), read.next_out(), read.next_size(), read.next_offset(), flags,
                slot);
  }

  void go_on(std::size_t slot, std::int64_t result) {
    BlockRead &read = slots_[slot].read;
    result = file_.system().completed(result, read.next_size(), read.next_offset());
    try {
      if (result == -EAGAIN) {
        // Some drivers cannot take a read that must not block; asking again would spin.
        file_.finish_blocking(read);
      } else if (!file_.advance(read, result)) {
        if (refused_) {
          file_.finish_blocking(read);
        } else {
          start(slot);
          return;
        }
      }
      end_slot(slot, nullptr);
    } catch (const Error &error) {
      end_slot(slot, &error);
    }
  }

  void end_slot(std::size_t slot, const Error *error) {
    ReadRequest request = std::move(slots_[slot].request);
    slots_[slot].request = ReadRequest();
    free_.push_back(slot);
    end(request, error);
  }

  void end(ReadRequest &request, const Error *error) {
    switch (request.owner->ended(error)) {
      case ReadOwner::Left::parts:
        break;
      case ReadOwner::Left::finish:
        request.owner->finish();
        break;
      case ReadOwner::Left::long_finish:
        finish_elsewhere(request.owner);
        break;
    }
  }

  void finish_elsewhere(const std::shared_ptr<ReadOwner> &owner) {
    try {
      finisher_->push({owner});
    } catch (const std::bad_alloc &) {
      owner->finish();
    }
  }

  // The kernel takes no more submissions, which no documented error leads to. What it has accepted will still be
  // written and completed; what it has not, and everything from now on, is read by blocking calls.
  void leave_kernel() {
    refused_ = true;
    std::uint64_t tag;
    while (queues_.take_back(tag)) {
      if (tag != kWakeTag) go_on(static_cast<std::size_t>(tag), -EAGAIN);
    }
    for (;;) {
      reap();
      bool idle = false;
      ReadRequest request;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!waiting_.empty()) {
          request = std::move(waiting_.front());
          waiting_.pop_front();
        } else if (free_.size() == slots_.size() && stopping_) {
          return;
        } else {
          idle = true;
        }
      }
      if (idle) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      if (!request.owner->begin()) {
        end(request, nullptr);
        continue;
      }
      try {
        BlockRead read = file_.begin(request.out, request.size, request.offset, false);
        file_.finish_blocking(read);
        end(request, nullptr);
      } catch (const Error &error) {
        end(request, &error);
      }
    }
  }

  BlockFile &file_;
  uring::Queues queues_;
  int wake_ = -1;
  std::uint64_t woken_ = 0;  // the kernel writes it
  std::unique_ptr<JobThreads<std::shared_ptr<ReadOwner>>> finisher_;

  std::mutex mutex_;
  std::deque<ReadRequest> waiting_;
  bool stopping_ = false;

  // Of the serving thread alone.
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_;
  bool refused_ = false;

  std::thread thread_;
};

}  // namespace

std::unique_ptr<ReadQueue> make_io_uring(BlockFile &file, int depth, std::string &reason) {
  auto queue = std::make_unique<Uring>(file);
  reason = queue->open(depth);
  if (!reason.empty()) return nullptr;
  return queue;
}

}  // namespace edgekit

#endif  // Linux
