// Files on Linux, Android, macOS and iOS.
#if !defined(_WIN32)

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "error.h"
#include "system_file.h"

namespace edgekit {
namespace {

static_assert(sizeof(::off_t) == 8, "files of more than 2 GiB need 64-bit offsets: define _FILE_OFFSET_BITS=64");

std::string text_of(int code) { return std::system_category().message(code); }

int open_descriptor(const std::string &path, int flags) {
  int descriptor;
  do {
    descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

FileIdentity identity_of(const struct stat &status) {
  FileIdentity identity;
  identity.device = static_cast<std::uint64_t>(status.st_dev);
  identity.inode = static_cast<std::uint64_t>(status.st_ino);
  identity.size = static_cast<std::uint64_t>(status.st_size);
#if defined(__APPLE__)
  const struct timespec &time = status.st_mtimespec;
#else
  const struct timespec &time = status.st_mtim;
#endif
  identity.modified = static_cast<std::int64_t>(time.tv_sec) * 1000000000 + static_cast<std::int64_t>(time.tv_nsec);
  return identity;
}

class PosixFile final : public SystemFile {
 public:
  explicit PosixFile(const std::string &path) : path_(path) {
    if (path.find('\0') != std::string::npos) {
      fail(EK_OPEN_FAILED, "cannot open a path that holds a null byte; check the path");
    }
    // A FIFO without a writer would block the open; regular files ignore O_NONBLOCK.
    descriptor_ = open_descriptor(path_, O_NONBLOCK);
    if (descriptor_ < 0) {
      fail(EK_OPEN_FAILED, path_, ": cannot open (", text_of(errno), "); check the path and its permissions");
    }
    struct stat status;
    if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
      const bool folder = S_ISDIR(status.st_mode);
      ::close(descriptor_);
      fail(EK_OPEN_FAILED, path_, ": is ", folder ? "a directory" : "not a regular file",
           "; give the path of a file");
    }
  }

  ~PosixFile() override {
    ::close(descriptor_);
    if (direct_ >= 0) ::close(direct_);
  }

  PosixFile(const PosixFile &) = delete;
  PosixFile &operator=(const PosixFile &) = delete;

  FileIdentity identity() const override {
    struct stat status;
    if (::fstat(descriptor_, &status) != 0) {
      fail(EK_READ_FAILED, path_, ": its state cannot be read (", text_of(errno), "); check the disk");
    }
    return identity_of(status);
  }

  bool identity_at_path(FileIdentity &found) const override {
    struct stat status;
    if (::stat(path_.c_str(), &status) != 0) return false;
    found = identity_of(status);
    return true;
  }

  std::string open_direct() override {
#if defined(__APPLE__)
    direct_ = open_descriptor(path_, 0);
    if (direct_ < 0) return "a second descriptor is refused (" + text_of(errno) + ")";
    if (::fcntl(direct_, F_NOCACHE, 1) < 0) return "the file system refuses F_NOCACHE (" + text_of(errno) + ")";
#elif defined(O_DIRECT)
    direct_ = open_descriptor(path_, O_DIRECT);
    if (direct_ < 0) return "the file system refuses O_DIRECT (" + text_of(errno) + ")";
#else
    return "this system has no O_DIRECT";
#endif
    struct stat status;
    if (::fstat(direct_, &status) != 0 || !identity_of(status).same_file(identity())) {
      fail(EK_FILE_CHANGED, path_, ": was replaced while it was being opened; open it again");
    }
    return "";
  }

#if defined(__APPLE__)
  std::uint64_t direct_alignment() const override { return 1; }
  const char *direct_name() const override { return "nocache"; }
#else
  // Linux leaves the alignment to device and file system; a page satisfies all that we know.
  std::uint64_t direct_alignment() const override { return 4096; }
  const char *direct_name() const override { return "direct"; }
#endif

  std::int64_t read(bool direct, void *out, std::size_t size, std::uint64_t offset) override {
    const ::ssize_t count = ::pread(descriptor(direct), out, size, static_cast<::off_t>(offset));
    return count < 0 ? -static_cast<std::int64_t>(errno) : static_cast<std::int64_t>(count);
  }

  bool interrupted(std::int64_t code) const override { return code == -EINTR; }

  std::string describe(std::int64_t code) const override { return text_of(static_cast<int>(-code)); }

  void forget(std::uint64_t offset, std::uint64_t size) override {
#if defined(POSIX_FADV_DONTNEED)
    ::posix_fadvise(descriptor_, static_cast<::off_t>(offset), static_cast<::off_t>(size), POSIX_FADV_DONTNEED);
#else
    (void)offset;
    (void)size;
#endif
  }

  int descriptor(bool direct) const override { return direct ? direct_ : descriptor_; }

 private:
  const std::string path_;
  int descriptor_ = -1;
  int direct_ = -1;
};

}  // namespace

std::filesystem::path real_path(const std::filesystem::path &path, std::error_code &error) {
  return std::filesystem::canonical(path, error);
}

std::unique_ptr<SystemFile> SystemFile::open(const std::string &path) { return std::make_unique<PosixFile>(path); }

}  // namespace edgekit

#endif  // !_WIN32
