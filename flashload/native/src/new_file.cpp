#include "new_file.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <system_error>

#include "error.h"

#if defined(_WIN32)
#include <windows.h>

#include "wide_path.h"
#else
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#endif

namespace edgekit {
namespace {

// Systems limit a single write to just below 2 GiB.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

// A name in the same folder that nobody else has: of this process, of this object, and random besides.
std::string beside(const std::string &path) {
  static std::atomic<unsigned> made{0};
#if defined(_WIN32)
  const std::size_t name = path.find_last_of("/\\") + 1;
  const unsigned long process = GetCurrentProcessId();
#else
  const std::size_t name = path.rfind('/') + 1;
  const long process = static_cast<long>(::getpid());
#endif
  if (name == path.size()) fail(EK_WRITE_FAILED, path, ": is no name of a file");
  const std::string own = std::to_string(process) + "-" + std::to_string(++made) + "-" + std::to_string(std::random_device{}());
  return path.substr(0, name) + ".edgekit-" + own + ".tmp";
}

}  // namespace

void NewFile::refuse(const char *doing, int code) const {
  fail(EK_WRITE_FAILED, path_, ": cannot ", doing, " (", std::system_category().message(code),
       "); check the folder and the room on its disk");
}

void NewFile::write(const void *data, std::size_t size) {
  put(data, size, size_);
  size_ += size;
}

void NewFile::replace_start(const void *data, std::size_t size) { put(data, size, 0); }

#if defined(_WIN32)

NewFile::NewFile(const std::string &path) : path_(path) {
  const std::string name = beside(path);
  handle_ = CreateFileW(wide(name).c_str(), GENERIC_WRITE, 0, nullptr, CREATE_NEW, FILE_ATTRIBUTE_NORMAL, nullptr);
  if (handle_ == INVALID_HANDLE_VALUE) refuse("write in its folder", static_cast<int>(GetLastError()));
  temporary_ = name;
}

NewFile::~NewFile() {
  if (temporary_.empty()) return;
  if (handle_ != INVALID_HANDLE_VALUE) CloseHandle(handle_);
  try {
    DeleteFileW(wide(temporary_).c_str());
  } catch (...) {
    // No memory for the name: the file stays, under a name that nobody takes for the whole one.
  }
}

void NewFile::put(const void *data, std::size_t size, std::uint64_t offset) {
  const auto *from = static_cast<const char *>(data);
  while (size > 0) {
    OVERLAPPED place{};
    place.Offset = static_cast<DWORD>(offset);
    place.OffsetHigh = static_cast<DWORD>(offset >> 32);
    DWORD count = 0;
    if (!WriteFile(handle_, from, static_cast<DWORD>(std::min(size, kMostBytes)), &count, &place) || count == 0) {
      refuse("be written", static_cast<int>(GetLastError()));
    }
    from += count;
    size -= count;
    offset += count;
  }
}

void NewFile::finish() {
  if (!FlushFileBuffers(handle_)) refuse("be written", static_cast<int>(GetLastError()));
  CloseHandle(handle_);
  handle_ = INVALID_HANDLE_VALUE;
  if (!MoveFileExW(wide(temporary_).c_str(), wide(path_).c_str(), MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH)) {
    refuse("be given its name", static_cast<int>(GetLastError()));
  }
  temporary_.clear();
}

#else

NewFile::NewFile(const std::string &path) : path_(path) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    fail(EK_WRITE_FAILED, "cannot write to a path that is empty or holds a null byte; check the path");
  }
  // `finish` would put a file in place of a device.
  struct ::stat there {};
  if (::stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode))
    fail(EK_WRITE_FAILED, path, ": is there, and is no regular file; give the name of another one");
  const std::string name = beside(path);
  do {
    descriptor_ = ::open(name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) refuse("write in its folder", errno);
  temporary_ = name;
}

NewFile::~NewFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void NewFile::put(const void *data, std::size_t size, std::uint64_t offset) {
  const auto *from = static_cast<const char *>(data);
  while (size > 0) {
    const ::ssize_t count = ::pwrite(descriptor_, from, std::min(size, kMostBytes), static_cast<::off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) refuse("be written", count < 0 ? errno : ENOSPC);
    from += count;
    size -= static_cast<std::size_t>(count);
    offset += static_cast<std::uint64_t>(count);
  }
}

void NewFile::finish() {
  while (::fsync(descriptor_) != 0) {
    if (errno != EINTR) refuse("be written", errno);
  }
  const int closed = ::close(descriptor_);
  descriptor_ = -1;
  if (closed != 0 && errno != EINTR) refuse("be written", errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) refuse("be given its name", errno);
  temporary_.clear();
  // The name too: some file systems cannot, and the file is whole whichever name it has after a loss of power.
  const std::size_t name = path_.rfind('/') + 1;
  const std::string folder = name == 0 ? "." : path_.substr(0, name);
  const int opened = ::open(folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened < 0) return;
  ::fsync(opened);
  ::close(opened);
}

#endif

}  // namespace edgekit
