// Files on Windows: positional reads by overlapped I/O, past the cache with FILE_FLAG_NO_BUFFERING. Run under Wine alone,
// which reads through the cache anyway and asks nothing of alignment.
#if defined(_WIN32)

#include <windows.h>

#include <system_error>

#include "error.h"
#include "system_file.h"
#include "wide_path.h"

namespace edgekit {

std::wstring wide(const std::string &path) {
  const int size = static_cast<int>(path.size());
  const int needed = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path.data(), size, nullptr, 0);
  if (needed == 0 || path.find('\0') != std::string::npos) {
    fail(EK_OPEN_FAILED, "cannot open a path that is empty, holds a null byte or is not UTF-8; check the path");
  }
  std::wstring text(static_cast<std::size_t>(needed), L'\0');
  MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path.data(), size, text.data(), needed);
  return text;
}

namespace {

// Sector sizes on the disks we know are 512 and 4096 bytes.
constexpr std::uint64_t kDirectAlignment = 4096;

std::string text_of(DWORD code) { return std::system_category().message(static_cast<int>(code)); }

HANDLE open_handle(const std::wstring &path, DWORD access, DWORD flags) {
  return CreateFileW(path.c_str(), access, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, nullptr,
                     OPEN_EXISTING, flags, nullptr);
}

bool identify(HANDLE handle, FileIdentity &identity) {
  BY_HANDLE_FILE_INFORMATION information;
  if (!GetFileInformationByHandle(handle, &information)) return false;
  const auto joined = [](DWORD high, DWORD low) { return std::uint64_t{high} << 32 | low; };
  identity.device = information.dwVolumeSerialNumber;
  identity.inode = joined(information.nFileIndexHigh, information.nFileIndexLow);
  identity.size = joined(information.nFileSizeHigh, information.nFileSizeLow);
  identity.modified = static_cast<std::int64_t>(
      joined(information.ftLastWriteTime.dwHighDateTime, information.ftLastWriteTime.dwLowDateTime));
  return true;
}

// One event per reading thread: a file handle's own signal does not tell which of several reads has ended.
class ThreadEvent {
 public:
  ThreadEvent() : handle_(CreateEventW(nullptr, TRUE, FALSE, nullptr)) {}
  ~ThreadEvent() {
    if (handle_ != nullptr) CloseHandle(handle_);
  }
  HANDLE handle() const noexcept { return handle_; }

 private:
  HANDLE handle_;
};

class WindowsFile final : public SystemFile {
 public:
  explicit WindowsFile(const std::string &path) : path_(path), wide_path_(wide(path)) {
    const DWORD attributes = GetFileAttributesW(wide_path_.c_str());
    if (attributes != INVALID_FILE_ATTRIBUTES && (attributes & FILE_ATTRIBUTE_DIRECTORY) != 0) {
      fail(EK_OPEN_FAILED, path_, ": is a directory; give the path of a file");
    }
    handle_ = open_handle(wide_path_, GENERIC_READ, FILE_FLAG_OVERLAPPED | FILE_FLAG_RANDOM_ACCESS);
    if (handle_ == INVALID_HANDLE_VALUE) {
      fail(EK_OPEN_FAILED, path_, ": cannot open (", text_of(GetLastError()), "); check the path and its permissions");
    }
    if (GetFileType(handle_) != FILE_TYPE_DISK) {
      CloseHandle(handle_);
      fail(EK_OPEN_FAILED, path_, ": is not a regular file; give the path of a file");
    }
  }

  ~WindowsFile() override {
    CloseHandle(handle_);
    if (direct_ != INVALID_HANDLE_VALUE) CloseHandle(direct_);
  }

  WindowsFile(const WindowsFile &) = delete;
  WindowsFile &operator=(const WindowsFile &) = delete;

  FileIdentity identity() const override {
    FileIdentity identity;
    if (!identify(handle_, identity)) {
      fail(EK_READ_FAILED, path_, ": its state cannot be read (", text_of(GetLastError()), "); check the disk");
    }
    return identity;
  }

  bool identity_at_path(FileIdentity &found) const override {
    const HANDLE handle = open_handle(wide_path_, FILE_READ_ATTRIBUTES, FILE_ATTRIBUTE_NORMAL);
    if (handle == INVALID_HANDLE_VALUE) return false;
    const bool known = identify(handle, found);
    CloseHandle(handle);
    return known;
  }

  std::string open_direct() override {
    direct_ = open_handle(wide_path_, GENERIC_READ, FILE_FLAG_OVERLAPPED | FILE_FLAG_NO_BUFFERING);
    if (direct_ == INVALID_HANDLE_VALUE) {
      return "the file system refuses FILE_FLAG_NO_BUFFERING (" + text_of(GetLastError()) + ")";
    }
    FileIdentity found;
    if (!identify(direct_, found) || !found.same_file(identity())) {
      fail(EK_FILE_CHANGED, path_, ": was replaced while it was being opened; open it again");
    }
    return "";
  }

  std::uint64_t direct_alignment() const override { return kDirectAlignment; }
  const char *direct_name() const override { return "direct"; }

  std::int64_t read(bool direct, void *out, std::size_t size, std::uint64_t offset) override {
    thread_local const ThreadEvent event;
    if (event.handle() == nullptr) return -static_cast<std::int64_t>(ERROR_NOT_ENOUGH_MEMORY);
    OVERLAPPED place = {};
    place.Offset = static_cast<DWORD>(offset);
    place.OffsetHigh = static_cast<DWORD>(offset >> 32);
    place.hEvent = event.handle();
    const HANDLE handle = direct ? direct_ : handle_;
    if (!ReadFile(handle, out, static_cast<DWORD>(size), nullptr, &place) && GetLastError() != ERROR_IO_PENDING) {
      return failed(GetLastError());
    }
    DWORD count = 0;
    if (!GetOverlappedResult(handle, &place, &count, TRUE)) return failed(GetLastError());
    return static_cast<std::int64_t>(count);
  }

  bool interrupted(std::int64_t) const override { return false; }

  std::string describe(std::int64_t code) const override { return text_of(static_cast<DWORD>(-code)); }

  // There is no call that drops a part of a file from the cache.
  void forget(std::uint64_t, std::uint64_t) override {}

  int descriptor(bool) const override { return -1; }

 private:
  static std::int64_t failed(DWORD code) {
    return code == ERROR_HANDLE_EOF ? 0 : -static_cast<std::int64_t>(code);
  }

  const std::string path_;
  const std::wstring wide_path_;
  HANDLE handle_ = INVALID_HANDLE_VALUE;
  HANDLE direct_ = INVALID_HANDLE_VALUE;
};

}  // namespace

// std::filesystem::canonical of GCC's library follows no links here.
std::filesystem::path real_path(const std::filesystem::path &path, std::error_code &error) {
  // In words that are the same in every language, where there are any.
  const auto refused = [&error](DWORD code) {
    const std::error_code found(static_cast<int>(code), std::system_category());
    error.assign(found.default_error_condition().value(), found.default_error_condition().category());
    return std::filesystem::path();
  };
  error.clear();
  // Folders open with FILE_FLAG_BACKUP_SEMANTICS alone.
  const HANDLE handle = open_handle(path.wstring(), 0, FILE_FLAG_BACKUP_SEMANTICS);
  if (handle == INVALID_HANDLE_VALUE) return refused(GetLastError());
  std::wstring name(MAX_PATH, L'\0');
  DWORD size = GetFinalPathNameByHandleW(handle, name.data(), static_cast<DWORD>(name.size()), VOLUME_NAME_DOS);
  if (size > name.size()) {  // what it takes, its null with it
    name.resize(size);
    size = GetFinalPathNameByHandleW(handle, name.data(), static_cast<DWORD>(name.size()), VOLUME_NAME_DOS);
  }
  const DWORD code = size == 0 ? GetLastError() : size >= name.size() ? ERROR_INSUFFICIENT_BUFFER : ERROR_SUCCESS;
  CloseHandle(handle);
  if (code != ERROR_SUCCESS) return refused(code);
  name.resize(size);
  // \\?\C:\folder as people write it; longer paths need the prefix.
  if (size < MAX_PATH && name.compare(0, 4, L"\\\\?\\") == 0 && name.compare(5, 1, L":") == 0) name.erase(0, 4);
  return std::filesystem::path(name);
}

std::unique_ptr<SystemFile> SystemFile::open(const std::string &path) { return std::make_unique<WindowsFile>(path); }

}  // namespace edgekit

#endif  // _WIN32
