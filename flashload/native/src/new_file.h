// A file that has its name only once it is whole: it is written under another, in the same folder.
#ifndef EDGEKIT_NEW_FILE_H
#define EDGEKIT_NEW_FILE_H

#include <cstddef>
#include <cstdint>
#include <string>

namespace edgekit {

class NewFile {
 public:
  // `path` is UTF-8; what is there stays until `finish`. Throws Error (EK_WRITE_FAILED), also where that is a device.
  explicit NewFile(const std::string &path);
  // Removes what was not finished.
  ~NewFile();
  NewFile(const NewFile &) = delete;
  NewFile &operator=(const NewFile &) = delete;

  // Behind what was written. Throws Error (EK_WRITE_FAILED).
  void write(const void *data, std::size_t size);
  // In place of the first bytes. Throws Error (EK_WRITE_FAILED).
  void replace_start(const void *data, std::size_t size);

  // Has the disk hold it, and gives it its name in place of what had that. Throws Error (EK_WRITE_FAILED).
  void finish();

 private:
  void put(const void *data, std::size_t size, std::uint64_t offset);
  [[noreturn]] void refuse(const char *doing, int code) const;

  const std::string path_;
  std::string temporary_;  // empty: there is none
  std::uint64_t size_ = 0;
#if defined(_WIN32)
  void *handle_ = nullptr;
#else
  int descriptor_ = -1;
#endif
};

}  // namespace edgekit

#endif  // EDGEKIT_NEW_FILE_H
