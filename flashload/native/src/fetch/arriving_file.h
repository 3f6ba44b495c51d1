// A file of a known size that is filled in any order.
#ifndef EDGEKIT_ARRIVING_FILE_H
#define EDGEKIT_ARRIVING_FILE_H

#include <cstddef>
#include <cstdint>
#include <string>

#include "fetch/byte_ranges.h"

namespace edgekit {

// Safe to use from several threads.
class ArrivingFile {
 public:
  // Makes it, or opens what is there and gives it this size. `path` is UTF-8. Throws Error (EK_WRITE_FAILED).
  ArrivingFile(const std::string &path, std::uint64_t size);
  ~ArrivingFile();
  ArrivingFile(const ArrivingFile &) = delete;
  ArrivingFile &operator=(const ArrivingFile &) = delete;

  // Throws Error (EK_WRITE_FAILED).
  void write(const void *data, std::size_t size, std::uint64_t offset);
  // Throws Error (EK_READ_FAILED).
  void read(void *out, std::size_t size, std::uint64_t offset) const;

  // Where something may have been written: all that is no hole, without what lies right before one, which may have been
  // written in part. Of a file that was made here nothing; else all of it where the system does not tell holes.
  ByteRanges written() const;

  // Has the disk hold it. Throws Error (EK_WRITE_FAILED).
  void sync();
  // Forgets its bytes. Throws Error (EK_WRITE_FAILED).
  void empty();

 private:
  [[noreturn]] void refuse(const char *doing, int code) const;

  const std::string path_;
  const std::uint64_t size_;
  bool made_ = false;
#if defined(_WIN32)
  void *handle_ = nullptr;
#else
  int descriptor_ = -1;
#endif
};

}  // namespace edgekit

#endif  // EDGEKIT_ARRIVING_FILE_H
