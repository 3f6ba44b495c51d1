// What tests of reading share: flash files, the ways to read them, and doors that reads wait at.
#ifndef EDGEKIT_TESTING_FLASH_FIXTURES_H
#define EDGEKIT_TESTING_FLASH_FIXTURES_H

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "error.h"
#include "flash_file.h"
#include "unit.h"
#include "xxh3.h"

namespace edgekit_testing {

constexpr std::uint64_t kPage = edgekit::kRunAlignment;

// A flash file of runs r0, r1, ... of so many pages each, in the temporary folder, under a name with a letter beyond
// ASCII; removed with the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::vector<int> &pages) {
    std::random_device random;
    path_ = std::filesystem::temp_directory_path() /
            std::filesystem::u8path("edgekit_\xC3\xA9_" + std::to_string(random()) + std::to_string(random()));
    std::string rows, tensors, data;
    std::uint32_t state = 1;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      std::string run(static_cast<std::size_t>(pages[i]) * kPage, '\0');
      for (char &byte : run) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
      const std::string number = std::to_string(i), begin = std::to_string(data.size());
      char digest[17];
      std::snprintf(digest, sizeof digest, "%016llx",
                    static_cast<unsigned long long>(edgekit::xxh3_64(run.data(), run.size())));
      rows += (i ? "," : "") + ("[\\\"r" + number) + "\\\"," + std::to_string(kPage + data.size()) + "," +
              std::to_string(run.size()) + ",\\\"" + digest + "\\\"]";
      tensors += ",\"t" + number + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(run.size()) +
                 "],\"data_offsets\":[" + begin + "," + std::to_string(data.size() + run.size()) + "]}";
      data += run;
      runs.push_back(std::move(run));
    }
    std::string header =
        "{\"__metadata__\":{\"edgekit.format\":\"1\",\"edgekit.runs\":\"[" + rows + "]\"}" + tensors + "}";
    header.resize(kPage - 8, ' ');
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i) length[static_cast<std::size_t>(i)] = static_cast<char>((kPage - 8) >> (8 * i));
    std::ofstream(path_, std::ios::binary) << length << header << data;
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }

  // UTF-8, which file streams do not take on Windows.
  std::string path() const { return path_.u8string(); }
  bool equal(std::size_t run, const std::uint8_t *found) const {
    return std::equal(runs[run].begin(), runs[run].end(), reinterpret_cast<const char *>(found));
  }

  std::vector<std::string> runs;

 private:
  std::filesystem::path path_;
};

struct Way {
  bool direct, io_uring;
};
constexpr Way kWays[] = {{true, true}, {true, false}, {false, true}, {false, false}};

inline edgekit::FlashOptions options(Way way, int threads = 3, std::uint64_t chunk = 2 * kPage) {
  edgekit::FlashOptions options;
  options.threads = threads;
  options.chunk_bytes = chunk;
  options.direct = way.direct;
  options.io_uring = way.io_uring;
  return options;
}

template <typename Function>
std::optional<ek_status> status_of(Function function) {
  try {
    function();
    return std::nullopt;
  } catch (const edgekit::Error &error) {
    return error.status();
  }
}

// A door that reads wait at.
class Gate {
 public:
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void wait_for_arrivals(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= count; });
  }
  void open() {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  bool open_ = false;
};

}  // namespace edgekit_testing

#endif  // EDGEKIT_TESTING_FLASH_FIXTURES_H
