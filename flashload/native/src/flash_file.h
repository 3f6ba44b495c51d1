// An open flash file: whole runs read in parallel past the page cache, each verified when it is first read.
#ifndef EDGEKIT_FLASH_FILE_H
#define EDGEKIT_FLASH_FILE_H

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "error.h"
#include "flash_layout.h"

namespace edgekit {

class SystemFile;

// Memory at a page boundary (2 MiB pages are asked for where that helps), zeroed, given back on destruction.
class AlignedMemory {
 public:
  AlignedMemory() = default;
  explicit AlignedMemory(std::size_t size);  // throws Error (EK_OUT_OF_MEMORY)
  ~AlignedMemory();
  AlignedMemory(AlignedMemory &&other) noexcept;
  AlignedMemory &operator=(AlignedMemory &&other) noexcept;

  std::uint8_t *data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

  // Gives the pages that lie wholly in a part of it back to the system; nobody may touch the part again.
  void discard(std::uint8_t *part, std::size_t size) noexcept;

 private:
  std::uint8_t *data_ = nullptr;
  std::size_t size_ = 0;
};

struct FlashOptions {
  // Reads in flight: enough for finished ones to wait until a busy processor turns to them.
  int threads = 16;
  std::uint64_t chunk_bytes = 4u << 20;  // per read; a multiple of kRunAlignment
  bool direct = true;                    // past the page cache where the system allows it
  bool io_uring = true;                  // where the system allows it
  std::optional<HeaderDigest> header;    // compared before the header is parsed
  std::string shown;                     // what path() and messages call the file; empty: its path
};

struct FlashStatistics {
  std::uint64_t bytes_read = 0;  // of runs, rows and the header
  std::uint64_t runs_read = 0;   // whole and verified
  double verify_seconds = 0;
  std::uint64_t fallbacks = 0;  // reads that left the fast path
  std::uint64_t short_reads = 0;
  std::uint64_t interrupts = 0;
};

// A run on its way into memory.
class PendingRead {
 public:
  virtual ~PendingRead() = default;
  // Skips the parts that nothing has begun to read; if there are any, the read ends with EK_STOPPED.
  virtual void cancel() noexcept = 0;
};

// Who is told of reads of whole runs, by the threads that read: from where it was asked for to where it was verified, or
// had failed.
class ReadObserver {
 public:
  virtual ~ReadObserver() = default;
  virtual void read(const Run &run, std::chrono::steady_clock::time_point begun,
                    std::chrono::steady_clock::time_point ended) noexcept = 0;
};

// Safe to use from several threads.
class FlashFile {
 public:
  // Stands between the core and the system; for tests.
  using Wrap = std::function<std::unique_ptr<SystemFile>(std::unique_ptr<SystemFile>)>;

  // Reads and checks the header alone. Throws Error: EK_INVALID_ARGUMENT, EK_OPEN_FAILED, EK_CHECKSUM_MISMATCH for
  // another header than options.header, and those of flash_layout.h.
  FlashFile(const std::string &path, const FlashOptions &options, const Wrap &wrap = nullptr);
  ~FlashFile();  // waits for reads under way

  const FlashLayout &layout() const noexcept;
  const std::string &path() const noexcept;
  // How runs are read: "direct", "nocache" or "buffered", then "io_uring" or "pread", then why it is not what was
  // asked for: "direct io_uring", "buffered pread: the file system refuses O_DIRECT (...)", ...
  const std::string &io_mode() const noexcept;
  FlashStatistics statistics() const;

  // Starts reading a run of this file into `buffer` (run.length bytes, page aligned); returns at once. `done` is
  // called once from a reader thread, after the last byte was written and verified (error null), or after nothing
  // writes any more because of an error. It must not throw and must not block on other reads.
  // A run is verified when it is first read, and again after the file's modification time has changed.
  // Throws Error: EK_INVALID_ARGUMENT for a run that is not in layout(), EK_FILE_CHANGED for a file of another size.
  using Done = std::function<void(const Error *error)>;
  std::shared_ptr<PendingRead> submit(const Run &run, std::uint8_t *buffer, Done done);

  // Reads a run and waits. Throws Error: EK_READ_FAILED, EK_TRUNCATED_FILE, EK_FILE_CHANGED, EK_CHECKSUM_MISMATCH.
  void read(const Run &run, std::uint8_t *buffer);

  // Tells `observer`, which may be null, of every run that is submitted from now on. No read may be under way.
  void observe(ReadObserver *observer) noexcept;

  // Compares the bytes of a run in the memory of one chunk; counts as its first read. Throws as read() does.
  void verify(const Run &run);

  // Copies `size` bytes from `offset` of the file through the page cache: for single rows of a table. They are only
  // as verified as their run. Throws as read() does, and EK_INVALID_ARGUMENT for a span outside the file.
  void read_bytes(std::uint64_t offset, std::size_t size, void *out);

  // The same for bytes from `offset` of a run. Throws as that does, and EK_INVALID_ARGUMENT for bytes that are not in one
  // piece of the file.
  void read_part(const Run &run, std::uint64_t offset, std::size_t size, void *out);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace edgekit

#endif  // EDGEKIT_FLASH_FILE_H
