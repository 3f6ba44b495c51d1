// A folder for a test.
#ifndef EDGEKIT_TESTING_SCRATCH_H
#define EDGEKIT_TESTING_SCRATCH_H

#include <filesystem>
#include <random>
#include <string>
#include <system_error>

namespace edgekit_testing {

// In the temporary folder, under a name with a letter beyond ASCII; removed with the object.
class Scratch {
 public:
  Scratch() {
    std::random_device random;
    const std::string number = std::to_string(random()) + std::to_string(random());
    path_ = std::filesystem::temp_directory_path() / std::filesystem::u8path("edgekit_\xC3\xBC_" + number);
    std::filesystem::create_directories(path_);
  }
  Scratch(const Scratch &) = delete;
  Scratch &operator=(const Scratch &) = delete;
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace edgekit_testing

#endif  // EDGEKIT_TESTING_SCRATCH_H
