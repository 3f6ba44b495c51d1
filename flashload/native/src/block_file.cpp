#include "block_file.h"

#include "flash_file.h"

namespace edgekit {
namespace {

// What statx(STATX_DIOALIGN) asks of offset, length and address is at most a page on the systems we know; the probe
// reads one such block that does not start at 0.
constexpr std::uint64_t kProbeOffset = 4096;
constexpr std::uint64_t kProbeBytes = 4096;

}  // namespace

BlockFile::BlockFile(const std::string &path, std::unique_ptr<SystemFile> file, bool direct)
    : path_(path), file_(std::move(file)), identity_(file_->identity()) {
  why_buffered_ = direct ? probe() : "asked for";
  direct_ = why_buffered_.empty();
  if (direct_) mode_ = file_->direct_name();
}

// Empty, or why reads have to go through the page cache.
std::string BlockFile::probe() {
  if (size() < kProbeOffset + kProbeBytes) {
    return "the file has fewer than " + std::to_string(kProbeOffset + kProbeBytes) + " bytes";
  }
  std::string refused = file_->open_direct();
  if (!refused.empty()) return refused;
  AlignedMemory block(kProbeOffset + kProbeBytes);
  std::int64_t result;
  do {
    result = file_->read(true, block.data() + kProbeOffset, kProbeBytes, kProbeOffset);
  } while (file_->interrupted(result));
  if (result < 0) return std::string("a ") + file_->direct_name() + " read failed (" + file_->describe(result) + ")";
  if (result != static_cast<std::int64_t>(kProbeBytes)) {
    return std::string("a ") + file_->direct_name() + " read of one block gave " + std::to_string(result) + " bytes";
  }
  return "";
}

BlockStatistics BlockFile::statistics() const noexcept {
  BlockStatistics now;
  now.bytes_read = bytes_read_.load(std::memory_order_relaxed);
  now.short_reads = short_reads_.load(std::memory_order_relaxed);
  now.interrupts = interrupts_.load(std::memory_order_relaxed);
  now.fallbacks = fallbacks_.load(std::memory_order_relaxed);
  return now;
}

void BlockFile::read(void *out, std::uint64_t size, std::uint64_t offset, bool cached) {
  if (size == 0) return;
  BlockRead read = begin(out, size, offset, cached);
  read_on(read);
}

void BlockFile::read_on(BlockRead &read) {
  std::int64_t result;
  do {
    result = file_->read(read.direct, read.next_out(), read.next_size(), read.next_offset());
  } while (!advance(read, result));
}

void BlockFile::finish_blocking(BlockRead &read) {
  fallbacks_.fetch_add(1, std::memory_order_relaxed);
  read_on(read);
}

BlockRead BlockFile::begin(void *out, std::uint64_t size, std::uint64_t offset, bool cached) {
  BlockRead read;
  read.out = static_cast<std::uint8_t *>(out);
  read.size = size;
  read.offset = offset;
  read.cached = cached;
  read.direct = direct_ && !cached;
  if (read.direct && ((reinterpret_cast<std::uintptr_t>(out) | size | offset) % file_->direct_alignment()) != 0) {
    fallbacks_.fetch_add(1, std::memory_order_relaxed);
    read.direct = false;
  }
  return read;
}

bool BlockFile::advance(BlockRead &read, std::int64_t result) {
  if (file_->interrupted(result)) {
    interrupts_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  const std::uint64_t wanted = read.size - read.done;
  if (result < 0) {
    require_unchanged();
    fail(EK_READ_FAILED, path_, ": reading ", wanted, " bytes at ", read.next_offset(), " failed (",
         file_->describe(result), "); check the disk");
  }
  if (result == 0) {
    require_unchanged();
    fail(EK_TRUNCATED_FILE, path_, ": ends at byte ", read.next_offset(), ", ", wanted, " bytes early; copy it again");
  }
  std::uint64_t count = static_cast<std::uint64_t>(result);
  bytes_read_.fetch_add(count, std::memory_order_relaxed);
  if (count < read.next_size()) short_reads_.fetch_add(1, std::memory_order_relaxed);
  if (read.direct && count % file_->direct_alignment() != 0) {
    // A direct read can only go on at a block boundary: read the broken block again.
    count -= count % file_->direct_alignment();
    if (count == 0) {
      fallbacks_.fetch_add(1, std::memory_order_relaxed);
      read.direct = false;
    }
  }
  read.done += count;
  if (read.done < read.size) return false;
  // Streamed weights are used once per step; left in the cache they push out what others need.
  if (!read.direct && !read.cached) file_->forget(read.offset, read.size);
  return true;
}

std::int64_t BlockFile::modified() const {
  const FileIdentity now = file_->identity();
  if (now.size != identity_.size) {
    fail(EK_FILE_CHANGED, path_, ": its size changed from ", identity_.size, " to ", now.size,
         " bytes while open; open it again");
  }
  return now.modified;
}

void BlockFile::require_unchanged() const {
  const std::int64_t written = modified();
  FileIdentity named;
  if (!file_->identity_at_path(named)) {
    fail(EK_FILE_CHANGED, path_, ": it is no longer at its path while open; open it again");
  }
  if (!named.same_file(identity_)) {
    fail(EK_FILE_CHANGED, path_, ": another file took its place while open; open it again");
  }
  if (written != identity_.modified) {
    fail(EK_FILE_CHANGED, path_, ": it was written to while open; open it again");
  }
}

}  // namespace edgekit
