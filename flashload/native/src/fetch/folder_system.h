// What systems do with folders.
#ifndef EDGEKIT_FOLDER_SYSTEM_H
#define EDGEKIT_FOLDER_SYSTEM_H

#include <cstdint>
#include <filesystem>

namespace edgekit {

// Keeps a folder for one object, against others of this process and of others. Windows and some network file systems keep
// nobody out.
class KeptFolder {
 public:
  KeptFolder() = default;
  ~KeptFolder();
  KeptFolder(const KeptFolder &) = delete;
  KeptFolder &operator=(const KeptFolder &) = delete;

  // Another folder than before is kept in its place.
  bool keep(const std::filesystem::path &folder) noexcept;  // false: another one has it
  void release() noexcept;
  // Whether the folder that has this name is the one that is kept, as far as that can be told: not on Windows.
  bool keeps(const std::filesystem::path &folder) const noexcept;

 private:
  bool kept_ = false;
#if !defined(_WIN32)
  int descriptor_ = -1;  // none where the folder cannot be opened
#endif
};

// Has two folders change names in one step; false where the system cannot.
bool exchange_folders(const std::filesystem::path &one, const std::filesystem::path &other) noexcept;

// Has the disk hold the names in a folder, as far as the system can.
void sync_folder(const std::filesystem::path &folder) noexcept;

// Whether a folder is the root of another file system than the one that it lies in.
bool is_mount_point(const std::filesystem::path &folder) noexcept;

// Bytes of the disk that a file takes; its size where the system does not tell.
std::uint64_t bytes_on_disk(const std::filesystem::path &file) noexcept;

}  // namespace edgekit

#endif  // EDGEKIT_FOLDER_SYSTEM_H
