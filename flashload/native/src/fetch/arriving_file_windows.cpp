// Arriving files on Windows. They have no holes there: all of a file that is there is compared.
#if defined(_WIN32)

#include <windows.h>

#include <algorithm>
#include <system_error>

#include "error.h"
#include "fetch/arriving_file.h"
#include "wide_path.h"

namespace edgekit {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;

OVERLAPPED place_of(std::uint64_t offset) {
  OVERLAPPED place{};
  place.Offset = static_cast<DWORD>(offset);
  place.OffsetHigh = static_cast<DWORD>(offset >> 32);
  return place;
}

bool set_size(HANDLE handle, std::uint64_t size) {
  LARGE_INTEGER end;
  end.QuadPart = static_cast<LONGLONG>(size);
  return SetFilePointerEx(handle, end, nullptr, FILE_BEGIN) && SetEndOfFile(handle);
}

}  // namespace

void ArrivingFile::refuse(const char *doing, int code) const {
  if (code == ERROR_DISK_FULL || code == ERROR_HANDLE_DISK_FULL) {
    fail(EK_WRITE_FAILED, path_, ": cannot ", doing, ": the disk is full; delete or move other files on it");
  }
  fail(EK_WRITE_FAILED, path_, ": cannot ", doing, " (", std::system_category().message(code),
       "); check the folder and its disk");
}

ArrivingFile::ArrivingFile(const std::string &path, std::uint64_t size) : path_(path), size_(size) {
  handle_ = CreateFileW(wide(path).c_str(), GENERIC_READ | GENERIC_WRITE, FILE_SHARE_READ, nullptr, OPEN_ALWAYS,
                        FILE_ATTRIBUTE_NORMAL, nullptr);
  if (handle_ == INVALID_HANDLE_VALUE) refuse("open", static_cast<int>(GetLastError()));
  LARGE_INTEGER found;
  made_ = GetFileSizeEx(handle_, &found) && found.QuadPart == 0;
  if (!set_size(handle_, size)) {
    const int code = static_cast<int>(GetLastError());
    CloseHandle(handle_);
    refuse("give it its size", code);
  }
}

ArrivingFile::~ArrivingFile() { CloseHandle(handle_); }

void ArrivingFile::write(const void *data, std::size_t size, std::uint64_t offset) {
  const auto *from = static_cast<const char *>(data);
  while (size > 0) {
    OVERLAPPED place = place_of(offset);
    DWORD count = 0;
    if (!WriteFile(handle_, from, static_cast<DWORD>(std::min(size, kMostBytes)), &count, &place) || count == 0) {
      refuse("write", static_cast<int>(GetLastError()));
    }
    from += count;
    size -= count;
    offset += count;
  }
}

void ArrivingFile::read(void *out, std::size_t size, std::uint64_t offset) const {
  auto *to = static_cast<char *>(out);
  while (size > 0) {
    OVERLAPPED place = place_of(offset);
    DWORD count = 0;
    if (!ReadFile(handle_, to, static_cast<DWORD>(std::min(size, kMostBytes)), &count, &place) || count == 0) {
      fail(EK_READ_FAILED, path_, ": read failed (", std::system_category().message(static_cast<int>(GetLastError())),
           "); check the disk");
    }
    to += count;
    size -= count;
    offset += count;
  }
}

ByteRanges ArrivingFile::written() const {
  ByteRanges all;
  if (!made_) all.add({0, size_});
  return all;
}

void ArrivingFile::sync() {
  if (!FlushFileBuffers(handle_)) refuse("have the disk hold it", static_cast<int>(GetLastError()));
}

void ArrivingFile::empty() {
  if (!set_size(handle_, 0) || !set_size(handle_, size_)) refuse("empty", static_cast<int>(GetLastError()));
}

}  // namespace edgekit

#endif
