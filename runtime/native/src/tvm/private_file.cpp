#include "tvm/private_file.h"

#include <filesystem>
#include <fstream>
#include <random>
#include <system_error>

#include "error.h"

#if !defined(_WIN32)
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#endif

namespace edgekit::tvm {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path &folder, const std::string &why) {
  fail(EK_OPEN_FAILED, "a copy of the bundle's library cannot be made in ",
       folder.empty() ? "the folder for temporary files" : folder.u8string(), " (", why,
       "); name one that has room in TMPDIR");
}

fs::path temporary_folder() {
  std::error_code error;
  const fs::path found = fs::temp_directory_path(error);
  if (error) refuse(found, error.message());
  return found;
}

}  // namespace

#if defined(_WIN32)
PrivateFile::PrivateFile(const std::string &bytes, const std::string &suffix) {
  const fs::path folder = temporary_folder();
  std::random_device random;
  const fs::path path = folder / ("edgekit-" + std::to_string(random()) + "-" + std::to_string(random()) + suffix);
  path_ = path.u8string();
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file) return;
  remove();
  refuse(folder, "it cannot be written");
}
#else
PrivateFile::PrivateFile(const std::string &bytes, const std::string &suffix) {
  const fs::path folder = temporary_folder();
  path_ = (folder / ("edgekit-XXXXXX" + suffix)).string();
  const int file = mkstemps(path_.data(), static_cast<int>(suffix.size()));
  if (file < 0) refuse(folder, std::strerror(errno));
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count = ::write(file, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const std::string why = std::strerror(errno);
      ::close(file);
      remove();
      refuse(folder, why);
    }
    done += static_cast<std::size_t>(count);
  }
  ::close(file);
}
#endif

PrivateFile::~PrivateFile() { remove(); }

void PrivateFile::remove() noexcept {
  std::error_code ignored;
  if (!path_.empty() && fs::remove(fs::u8path(path_), ignored)) path_.clear();
}

}  // namespace edgekit::tvm
