// Arriving files on Linux, Android, macOS and iOS.
#if !defined(_WIN32)

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "error.h"
#include "fetch/arriving_file.h"

namespace edgekit {
namespace {

// Systems limit a single call to just below 2 GiB.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;
// No file system has larger blocks: what was written in part is within so many bytes of a hole.
constexpr std::uint64_t kMostBlock = 64 * 1024;

}  // namespace

void ArrivingFile::refuse(const char *doing, int code) const {
  if (code == ENOSPC || code == EDQUOT) {
    fail(EK_WRITE_FAILED, path_, ": cannot ", doing, ": the disk is full; delete or move other files on it");
  }
  fail(EK_WRITE_FAILED, path_, ": cannot ", doing, " (", std::system_category().message(code),
       "); check the folder and its disk");
}

ArrivingFile::ArrivingFile(const std::string &path, std::uint64_t size) : path_(path), size_(size) {
  do {
    // A link or a FIFO in the folder was put there by somebody else.
    descriptor_ = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) refuse("open", errno);
  struct ::stat found {};
  bool regular = ::fstat(descriptor_, &found) == 0 && S_ISREG(found.st_mode);
  if (regular && found.st_nlink > 1) {  // its bytes are another file's too
    ::close(descriptor_);
    ::unlink(path.c_str());
    descriptor_ = ::open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (descriptor_ < 0) refuse("open", errno);
    regular = ::fstat(descriptor_, &found) == 0;
  }
  made_ = found.st_size == 0;
  if (!regular || ::ftruncate(descriptor_, static_cast<::off_t>(size)) != 0) {
    const int code = regular ? errno : EINVAL;
    ::close(descriptor_);
    refuse("give it its size", code);
  }
}

ArrivingFile::~ArrivingFile() { ::close(descriptor_); }

void ArrivingFile::write(const void *data, std::size_t size, std::uint64_t offset) {
  const auto *from = static_cast<const char *>(data);
  while (size > 0) {
    const ::ssize_t count = ::pwrite(descriptor_, from, std::min(size, kMostBytes), static_cast<::off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) refuse("write", count < 0 ? errno : ENOSPC);
    from += count;
    size -= static_cast<std::size_t>(count);
    offset += static_cast<std::uint64_t>(count);
  }
}

void ArrivingFile::read(void *out, std::size_t size, std::uint64_t offset) const {
  auto *to = static_cast<char *>(out);
  while (size > 0) {
    const ::ssize_t count = ::pread(descriptor_, to, std::min(size, kMostBytes), static_cast<::off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      fail(EK_READ_FAILED, path_, ": read failed (", count < 0 ? std::system_category().message(errno) : "it was cut",
           "); check the disk");
    }
    to += count;
    size -= static_cast<std::size_t>(count);
    offset += static_cast<std::uint64_t>(count);
  }
}

ByteRanges ArrivingFile::written() const {
  ByteRanges found;
  if (made_) return found;
#if defined(SEEK_DATA) && defined(SEEK_HOLE)
  std::uint64_t at = 0;
  while (at < size_) {
    const ::off_t begin = ::lseek(descriptor_, static_cast<::off_t>(at), SEEK_DATA);
    if (begin < 0 && errno == ENXIO) return found;  // the rest is a hole
    const ::off_t hole = begin < 0 ? begin : ::lseek(descriptor_, begin, SEEK_HOLE);
    if (hole <= begin) break;
    at = static_cast<std::uint64_t>(hole);
    const std::uint64_t end = at >= size_ ? size_ : at - std::min<std::uint64_t>(at, kMostBlock);
    if (end > static_cast<std::uint64_t>(begin)) found.add({static_cast<std::uint64_t>(begin), end});
  }
  if (at >= size_) return found;
  found.clear();
#endif
  found.add({0, size_});
  return found;
}

void ArrivingFile::sync() {
  while (::fsync(descriptor_) != 0) {
    if (errno != EINTR) refuse("have the disk hold it", errno);
  }
}

void ArrivingFile::empty() {
  if (::ftruncate(descriptor_, 0) != 0 || ::ftruncate(descriptor_, static_cast<::off_t>(size_)) != 0) refuse("empty", errno);
}

}  // namespace edgekit

#endif
