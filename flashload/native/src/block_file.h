// Exact-length positional reads of one file, past the page cache where the system allows it.
#ifndef EDGEKIT_BLOCK_FILE_H
#define EDGEKIT_BLOCK_FILE_H

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "error.h"
#include "system_file.h"

namespace edgekit {

// One exact-length read under way. Made by BlockFile::begin; `done` of `size` bytes have arrived.
struct BlockRead {
  std::uint8_t *out = nullptr;
  std::uint64_t size = 0;
  std::uint64_t offset = 0;
  std::uint64_t done = 0;
  bool direct = false;  // through the descriptor that bypasses the page cache
  bool cached = false;  // the pages are to stay in the page cache

  // The system read that comes next. Systems limit a single read to just below 2 GiB.
  std::uint8_t *next_out() const noexcept { return out + done; }
  std::uint64_t next_offset() const noexcept { return offset + done; }
  std::size_t next_size() const noexcept {
    constexpr std::uint64_t kMost = 1u << 30;
    return static_cast<std::size_t>(size - done < kMost ? size - done : kMost);
  }
};

struct BlockStatistics {
  std::uint64_t bytes_read = 0;
  std::uint64_t short_reads = 0;
  std::uint64_t interrupts = 0;
  std::uint64_t fallbacks = 0;  // reads that left the fast path
};

// Safe to use from several threads.
class BlockFile {
 public:
  // Takes an open file; `direct`: tries the way past the page cache, with a probing read. Throws Error
  // (EK_FILE_CHANGED).
  BlockFile(const std::string &path, std::unique_ptr<SystemFile> file, bool direct);

  const std::string &path() const noexcept { return path_; }
  std::uint64_t size() const noexcept { return identity_.size; }
  // As it was opened.
  const FileIdentity &identity() const noexcept { return identity_; }
  bool direct() const noexcept { return direct_; }
  // "direct", "nocache" or "buffered"; for the last one `why_buffered` tells the reason.
  const std::string &mode() const noexcept { return mode_; }
  const std::string &why_buffered() const noexcept { return why_buffered_; }
  BlockStatistics statistics() const noexcept;

  // Fills `out` entirely or throws Error: EK_READ_FAILED, EK_TRUNCATED_FILE, EK_FILE_CHANGED; its content is then
  // undefined. `cached` reads through the page cache and leaves the pages there (rows of a table come back often).
  void read(void *out, std::uint64_t size, std::uint64_t offset, bool cached);

  // The same in steps, for those who start system reads themselves: begin(), then advance() with the result of
  // every system read until it returns true. Throws as read() does.
  BlockRead begin(void *out, std::uint64_t size, std::uint64_t offset, bool cached);
  bool advance(BlockRead &read, std::int64_t result);
  // Goes on with blocking reads to the end; counts as one that left the fast path.
  void finish_blocking(BlockRead &read);

  // Modification time of the open file. Throws Error (EK_FILE_CHANGED) when its size is another.
  std::int64_t modified() const;
  // Throws Error (EK_FILE_CHANGED) when the file at the path is not the one that was opened, or was written to.
  void require_unchanged() const;

  SystemFile &system() noexcept { return *file_; }

 private:
  std::string probe();
  void read_on(BlockRead &read);

  const std::string path_;
  const std::unique_ptr<SystemFile> file_;
  const FileIdentity identity_;
  bool direct_ = false;
  std::string mode_ = "buffered";
  std::string why_buffered_;

  std::atomic<std::uint64_t> bytes_read_{0};
  std::atomic<std::uint64_t> short_reads_{0};
  std::atomic<std::uint64_t> interrupts_{0};
  std::atomic<std::uint64_t> fallbacks_{0};
};

}  // namespace edgekit

#endif  // EDGEKIT_BLOCK_FILE_H
