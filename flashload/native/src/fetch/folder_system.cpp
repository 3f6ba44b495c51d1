#include "fetch/folder_system.h"

#include <system_error>

#if !defined(_WIN32)
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#if defined(__ANDROID__)
#include <android/api-level.h>
#endif

namespace edgekit {

#if defined(_WIN32)

KeptFolder::~KeptFolder() = default;
void KeptFolder::release() noexcept { kept_ = false; }
bool KeptFolder::keeps(const std::filesystem::path &) const noexcept { return kept_; }
bool KeptFolder::keep(const std::filesystem::path &) noexcept { return kept_ = true; }

bool exchange_folders(const std::filesystem::path &, const std::filesystem::path &) noexcept { return false; }
void sync_folder(const std::filesystem::path &) noexcept {}
bool is_mount_point(const std::filesystem::path &) noexcept { return false; }

std::uint64_t bytes_on_disk(const std::filesystem::path &file) noexcept {
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  return error ? 0 : size;
}

#else

namespace {

bool is_at(int descriptor, const std::filesystem::path &folder) noexcept {
  struct ::stat own {}, named {};
  return ::fstat(descriptor, &own) == 0 && ::stat(folder.c_str(), &named) == 0 && own.st_ino == named.st_ino &&
         own.st_dev == named.st_dev;
}

}  // namespace

KeptFolder::~KeptFolder() { release(); }

void KeptFolder::release() noexcept {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  kept_ = false;
}

bool KeptFolder::keeps(const std::filesystem::path &folder) const noexcept {
  return kept_ && (descriptor_ < 0 || is_at(descriptor_, folder));
}

bool KeptFolder::keep(const std::filesystem::path &folder) noexcept {
  while (true) {
    const int opened = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0) {
      release();
      return kept_ = true;
    }
    if (::flock(opened, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      ::close(opened);
      return false;
    }
    if (!is_at(opened, folder)) {
      ::close(opened);  // another one has given the folder another name, and this name to another folder
      continue;
    }
    release();
    descriptor_ = opened;
    return kept_ = true;
  }
}

bool exchange_folders(const std::filesystem::path &one, const std::filesystem::path &other) noexcept {
#if defined(__APPLE__)
  return ::renamex_np(one.c_str(), other.c_str(), RENAME_SWAP) == 0;
#elif defined(__linux__) && defined(SYS_renameat2)
#if defined(__ANDROID__)
  // Before Android 11 the system ends an application that makes this call.
  if (android_get_device_api_level() < 30) return false;
#endif
  constexpr unsigned kExchange = 2;  // RENAME_EXCHANGE; older C libraries have no name for it
  return ::syscall(SYS_renameat2, AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), kExchange) == 0;
#else
  (void)one, (void)other;
  return false;
#endif
}

void sync_folder(const std::filesystem::path &folder) noexcept {
  const int opened = ::open(folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened < 0) return;
  ::fsync(opened);
  ::close(opened);
}

bool is_mount_point(const std::filesystem::path &folder) noexcept {
  struct ::stat own {}, above {};
  return ::stat(folder.c_str(), &own) == 0 && ::stat(folder.parent_path().c_str(), &above) == 0 && own.st_dev != above.st_dev;
}

std::uint64_t bytes_on_disk(const std::filesystem::path &file) noexcept {
  struct ::stat found {};
  if (::lstat(file.c_str(), &found) != 0) return 0;
  return static_cast<std::uint64_t>(found.st_blocks) * 512;  // of 512 bytes on every system
}

#endif

}  // namespace edgekit
