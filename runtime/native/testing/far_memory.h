// Memory that nobody reaches by its address: what a GPU's is to the session, for tests.
#ifndef EDGEKIT_TESTING_FAR_MEMORY_H
#define EDGEKIT_TESTING_FAR_MEMORY_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>

#include "flash_file.h"

namespace edgekit_testing {

// Addresses are real ones and a distance that no processor takes for an address. Any thread may call.
class FarMemory {
 public:
  void *allocate(std::size_t bytes) {
    edgekit::AlignedMemory made(bytes);
    std::memset(made.data(), 0xFF, bytes);  // whoever reads what was not written computes NaN
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(made.data()) + kFar;
    blocks_.emplace(at, std::move(made));
    return reinterpret_cast<void *>(at);
  }

  // Whether it is the whole of what was allocated.
  bool release(void *memory, std::size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<std::uintptr_t>(memory));
    if (found == blocks_.end() || found->second.size() != bytes) return false;
    blocks_.erase(found);
    return true;
  }

  // Where `bytes` bytes lie really. Throws std::runtime_error unless they are of one block that is allocated.
  void *real(const void *memory, std::size_t bytes) const {
    const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(memory);
    const std::lock_guard<std::mutex> lock(mutex_);
    auto next = blocks_.upper_bound(at);
    if (next == blocks_.begin()) throw std::runtime_error("an address that was not given out");
    --next;
    if (at - next->first > next->second.size() || bytes > next->second.size() - (at - next->first)) {
      throw std::runtime_error("memory that was not given out, or that was given back");
    }
    return reinterpret_cast<void *>(at - kFar);
  }

  std::size_t blocks() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return blocks_.size();
  }

 private:
  // Above the addresses of x86-64, and below the byte that AArch64 does not look at.
  static constexpr std::uintptr_t kFar = std::uintptr_t{1} << 52;

  mutable std::mutex mutex_;
  std::map<std::uintptr_t, edgekit::AlignedMemory> blocks_;
};

}  // namespace edgekit_testing

#endif  // EDGEKIT_TESTING_FAR_MEMORY_H
