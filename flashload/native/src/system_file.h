// One open file as the operating system gives it: single reads, which may be short or fail. What makes exact-length
// reads out of them is block_file.h. Virtual so that tests can put a failing disk in between.
#ifndef EDGEKIT_SYSTEM_FILE_H
#define EDGEKIT_SYSTEM_FILE_H

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

namespace edgekit {

// What tells a file from another one at the same path, and from its own earlier content.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::int64_t modified = 0;  // in the file system's finest unit

  bool same_file(const FileIdentity &other) const noexcept { return device == other.device && inode == other.inode; }
  // The same file, and as it was.
  bool operator==(const FileIdentity &other) const noexcept {
    return same_file(other) && size == other.size && modified == other.modified;
  }
};

// Where a path leads once all links are followed, absolute; empty with `error` set when nothing is there.
std::filesystem::path real_path(const std::filesystem::path &path, std::error_code &error);

// Safe to use from several threads, except for open_direct().
class SystemFile {
 public:
  // A regular file, opened for reads through the page cache. Throws Error (EK_OPEN_FAILED).
  static std::unique_ptr<SystemFile> open(const std::string &path);

  virtual ~SystemFile() = default;

  // Of the open file. Throws Error (EK_READ_FAILED).
  virtual FileIdentity identity() const = 0;
  // Of what is at the path now; false when nothing is.
  virtual bool identity_at_path(FileIdentity &found) const = 0;

  // Opens the way past the page cache, without reading: empty, or one phrase that says why there is none. Throws
  // Error (EK_FILE_CHANGED) when another file is at the path by now.
  virtual std::string open_direct() = 0;
  // What memory, offset and length of a direct read must be multiples of.
  virtual std::uint64_t direct_alignment() const = 0;
  // "direct" (Linux, Windows) or "nocache" (macOS), for io_mode.
  virtual const char *direct_name() const = 0;

  // Bytes read, 0 at the end of the file, or a negative code. `direct` only after open_direct() succeeded.
  virtual std::int64_t read(bool direct, void *out, std::size_t size, std::uint64_t offset) = 0;
  // Whether the code means that the read should simply be repeated.
  virtual bool interrupted(std::int64_t code) const = 0;
  virtual std::string describe(std::int64_t code) const = 0;

  // Drops a span from the page cache, where the system has a call for that.
  virtual void forget(std::uint64_t offset, std::uint64_t size) = 0;

  // --- io_uring (Linux) ---

  virtual int descriptor(bool direct) const = 0;
  // Tests return an errno value in place of what the kernel would say to a call.
  enum class UringCall { setup, enter };
  virtual int uring_fault(UringCall) { return 0; }
  // What a completed read is taken to have reported. Tests change it.
  virtual std::int64_t completed(std::int64_t result, std::size_t, std::uint64_t) { return result; }
};

}  // namespace edgekit

#endif  // EDGEKIT_SYSTEM_FILE_H
