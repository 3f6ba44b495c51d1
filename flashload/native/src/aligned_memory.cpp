// Mapped rather than from malloc, which would neither promise the alignment nor return the memory.
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include "flash_file.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace edgekit {
namespace {

[[noreturn]] void refuse(std::size_t size, const std::string &reason) {
  fail(EK_OUT_OF_MEMORY, "cannot map ", size, " bytes of memory (", reason, ")");
}

#if defined(_WIN32)

std::uint8_t *map(std::size_t size) {
  void *data = VirtualAlloc(nullptr, size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
  if (data == nullptr) refuse(size, std::system_category().message(static_cast<int>(GetLastError())));
  return static_cast<std::uint8_t *>(data);
}

void unmap(std::uint8_t *data, std::size_t) noexcept { VirtualFree(data, 0, MEM_RELEASE); }

std::size_t page_bytes() noexcept {
  SYSTEM_INFO info;
  GetSystemInfo(&info);
  return info.dwPageSize;
}

void decommit(std::uint8_t *data, std::size_t size) noexcept { VirtualFree(data, size, MEM_DECOMMIT); }

#else

// `size` bytes and `more`; messages tell the size that was asked for.
std::uint8_t *map_pages(std::size_t size, std::size_t more = 0) {
  void *data = ::mmap(nullptr, size + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) refuse(size, std::system_category().message(errno));
  return static_cast<std::uint8_t *>(data);
}

#if defined(MADV_HUGEPAGE)

// Two huge pages are the least of which one is sure to be whole wherever the mapping starts.
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kHugeFrom = 2 * kHugePage;

// Large blocks start at a huge page. Pinning their pages for a direct read and walking them in a kernel then take a
// 512th of the steps. No page beyond the block is touched: the kernel uses huge pages only where a whole one fits.
std::uint8_t *map(std::size_t size) {
  if (size < kHugeFrom) return map_pages(size);
  if (size > SIZE_MAX - kHugePage) refuse(size, "more than the address space");
  std::uint8_t *data = map_pages(size, kHugePage);
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(data) % kHugePage) % kHugePage;
  const std::size_t kept = (size + page - 1) / page * page;
  if (before != 0) ::munmap(data, before);
  if (before + kept < size + kHugePage) ::munmap(data + before + kept, size + kHugePage - before - kept);
  ::madvise(data + before, size, MADV_HUGEPAGE);  // a wish: without it the memory works all the same
  return data + before;
}

#else

std::uint8_t *map(std::size_t size) { return map_pages(size); }

#endif

void unmap(std::uint8_t *data, std::size_t size) noexcept { ::munmap(data, size); }

std::size_t page_bytes() noexcept { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

// Nothing in their place: what an advice gives back at once differs between systems. Where it fails they stay.
void decommit(std::uint8_t *data, std::size_t size) noexcept {
  ::mmap(data, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

#endif

}  // namespace

AlignedMemory::AlignedMemory(std::size_t size) : data_(size == 0 ? nullptr : map(size)), size_(size) {}

AlignedMemory::~AlignedMemory() {
  if (data_ != nullptr) unmap(data_, size_);
}

void AlignedMemory::discard(std::uint8_t *part, std::size_t size) noexcept {
  const std::size_t page = page_bytes();
  const std::size_t first = (static_cast<std::size_t>(part - data_) + page - 1) / page * page;
  const std::size_t end = static_cast<std::size_t>(part - data_) + size;
  const std::size_t last = end == size_ ? (end + page - 1) / page * page : end / page * page;
  if (first < last) decommit(data_ + first, last - first);
}

AlignedMemory::AlignedMemory(AlignedMemory &&other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AlignedMemory &AlignedMemory::operator=(AlignedMemory &&other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) unmap(data_, size_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

}  // namespace edgekit
