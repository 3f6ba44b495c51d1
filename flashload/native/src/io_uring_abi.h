// The part of Linux's io_uring interface that reading needs. Written out because the headers of the systems that
// the core is built on are often older than the kernels it runs on; the numbers and layouts are fixed for ever.
#ifndef EDGEKIT_IO_URING_ABI_H
#define EDGEKIT_IO_URING_ABI_H

#include <cstdint>

namespace edgekit {
namespace uring {

// The same on every architecture.
constexpr long kSetupCall = 425;
constexpr long kEnterCall = 426;

constexpr std::uint32_t kSetupClamp = 1u << 4;
constexpr std::uint32_t kFeatureSingleMap = 1u << 0;
constexpr std::uint32_t kFeatureNoDrop = 1u << 1;
constexpr std::uint32_t kEnterGetEvents = 1u << 0;
constexpr std::uint8_t kOpRead = 22;
constexpr std::uint8_t kFlagAsync = 1u << 4;  // hand it to a kernel thread at once

constexpr std::uint64_t kMapRings = 0;
constexpr std::uint64_t kMapEntries = 0x10000000;

struct SubmissionOffsets {
  std::uint32_t head, tail, mask, entries, flags, dropped, array, reserved;
  std::uint64_t user_address;
};

struct CompletionOffsets {
  std::uint32_t head, tail, mask, entries, overflow, completions, flags, reserved;
  std::uint64_t user_address;
};

struct Parameters {
  std::uint32_t submission_entries, completion_entries, flags, thread_cpu, thread_idle, features, work_queue;
  std::uint32_t reserved[3];
  SubmissionOffsets submission;
  CompletionOffsets completion;
};

struct Submission {
  std::uint8_t operation;
  std::uint8_t flags;
  std::uint16_t priority;
  std::int32_t descriptor;
  std::uint64_t offset;
  std::uint64_t address;
  std::uint32_t length;
  std::uint32_t read_flags;
  std::uint64_t tag;  // given back with the completion
  std::uint64_t unused[3];
};

struct Completion {
  std::uint64_t tag;
  std::int32_t result;  // bytes, or a negative errno value
  std::uint32_t flags;
};

static_assert(sizeof(Parameters) == 120 && sizeof(Submission) == 64 && sizeof(Completion) == 16,
              "the kernel expects other sizes");

}  // namespace uring
}  // namespace edgekit

#endif  // EDGEKIT_IO_URING_ABI_H
