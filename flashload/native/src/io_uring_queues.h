// The two queues of an io_uring, which are shared with the kernel. Linux only.
#ifndef EDGEKIT_IO_URING_QUEUES_H
#define EDGEKIT_IO_URING_QUEUES_H

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <system_error>

#include "io_uring_abi.h"
#include "system_file.h"

namespace edgekit {
namespace uring {

inline std::uint32_t acquire(const std::uint32_t *shared) { return __atomic_load_n(shared, __ATOMIC_ACQUIRE); }
inline void release(std::uint32_t *shared, std::uint32_t value) { __atomic_store_n(shared, value, __ATOMIC_RELEASE); }

inline std::string describe_error(int code) { return std::system_category().message(code); }

// Used by one thread at a time.
class Queues {
 public:
  explicit Queues(SystemFile &file) : file_(file) {}

  ~Queues() {
    if (entries_ != nullptr) ::munmap(entries_, entries_bytes_);
    if (rings_ != nullptr) ::munmap(rings_, rings_bytes_);
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  Queues(const Queues &) = delete;
  Queues &operator=(const Queues &) = delete;

  // Empty, or why not.
  std::string open(unsigned entries) {
    Parameters parameters = {};
    parameters.flags = kSetupClamp;
    const int fault = file_.uring_fault(SystemFile::UringCall::setup);
    if (fault == 0) descriptor_ = static_cast<int>(::syscall(kSetupCall, entries, &parameters));
    if (descriptor_ < 0) return "the system refuses it (" + describe_error(fault != 0 ? fault : errno) + ")";
    if ((parameters.features & kFeatureSingleMap) == 0 || (parameters.features & kFeatureNoDrop) == 0) {
      return "the kernel is older than 5.6";
    }
    const auto &sent = parameters.submission;
    const auto &completed = parameters.completion;
    rings_bytes_ = std::max<std::size_t>(
        sent.array + parameters.submission_entries * sizeof(std::uint32_t),
        completed.completions + parameters.completion_entries * sizeof(Completion));
    rings_ = map(rings_bytes_, kMapRings);
    entries_bytes_ = parameters.submission_entries * sizeof(Submission);
    entries_ = static_cast<Submission *>(map(entries_bytes_, kMapEntries));
    if (rings_ == nullptr || entries_ == nullptr) return "its memory cannot be mapped (" + describe_error(errno) + ")";

    sent_head_ = at(sent.head);
    sent_tail_ = at(sent.tail);
    sent_mask_ = *at(sent.mask);
    sent_array_ = at(sent.array);
    completed_head_ = at(completed.head);
    completed_tail_ = at(completed.tail);
    completed_mask_ = *at(completed.mask);
    completions_ = reinterpret_cast<const Completion *>(static_cast<char *>(rings_) + completed.completions);
    capacity_ = parameters.submission_entries;
    return "";
  }

  unsigned capacity() const noexcept { return capacity_; }

  // Adds a read that the next enter() tells the kernel of. No more than capacity() may be there at a time.
  void add(int descriptor, void *out, std::size_t size, std::uint64_t offset, std::uint8_t flags, std::uint64_t tag) {
    const std::uint32_t tail = *sent_tail_;  // written by this side alone
    Submission &entry = entries_[tail & sent_mask_];
    entry = {};
    entry.operation = kOpRead;
    entry.flags = flags;
    entry.descriptor = descriptor;
    entry.offset = offset;
    entry.address = reinterpret_cast<std::uintptr_t>(out);
    entry.length = static_cast<std::uint32_t>(size);
    entry.tag = tag;
    sent_array_[tail & sent_mask_] = tail & sent_mask_;
    release(sent_tail_, tail + 1);
  }

  // Tells the kernel of what was added and waits for a completion. 0, or an errno value.
  int enter() {
    if (const int fault = file_.uring_fault(SystemFile::UringCall::enter)) return fault;
    const std::uint32_t added = *sent_tail_ - acquire(sent_head_);
    const long result = ::syscall(kEnterCall, descriptor_, added, 1, kEnterGetEvents, nullptr, 0);
    return result < 0 ? errno : 0;
  }

  bool completed(std::uint64_t &tag, std::int64_t &result) {
    const std::uint32_t head = *completed_head_;  // written by this side alone
    if (head == acquire(completed_tail_)) return false;
    tag = completions_[head & completed_mask_].tag;
    result = completions_[head & completed_mask_].result;
    release(completed_head_, head + 1);
    return true;
  }

  // The tag of a read that was added and that the kernel has not accepted, which is forgotten.
  bool take_back(std::uint64_t &tag) {
    const std::uint32_t tail = *sent_tail_;
    if (acquire(sent_head_) == tail) return false;
    tag = entries_[(tail - 1) & sent_mask_].tag;
    release(sent_tail_, tail - 1);
    return true;
  }

 private:
  void *map(std::size_t bytes, std::uint64_t what) {
    void *data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor_,
                        static_cast<::off_t>(what));
    return data == MAP_FAILED ? nullptr : data;
  }

  std::uint32_t *at(std::uint32_t offset) {
    return reinterpret_cast<std::uint32_t *>(static_cast<char *>(rings_) + offset);
  }

  SystemFile &file_;
  int descriptor_ = -1;
  void *rings_ = nullptr;
  std::size_t rings_bytes_ = 0;
  Submission *entries_ = nullptr;
  std::size_t entries_bytes_ = 0;
  unsigned capacity_ = 0;
  std::uint32_t *sent_head_ = nullptr, *sent_tail_ = nullptr, *sent_array_ = nullptr;
  std::uint32_t *completed_head_ = nullptr, *completed_tail_ = nullptr;
  std::uint32_t sent_mask_ = 0, completed_mask_ = 0;
  const Completion *completions_ = nullptr;
};

}  // namespace uring
}  // namespace edgekit

#endif  // EDGEKIT_IO_URING_QUEUES_H
