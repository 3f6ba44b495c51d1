#include "disk_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "block_file.h"
#include "error.h"
#include "flash_file.h"

namespace edgekit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLeastSeconds = 0.01, kMostSeconds = 600;
constexpr int kReaders = 16;
constexpr std::uint64_t kReadBytes = 4u << 20;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// One opened file that several threads read in turns into a buffer each, whose pages are there already.
class Readers {
 public:
  Readers(const std::string &path, int threads, std::uint64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {
    std::unique_ptr<SystemFile> opened = SystemFile::open(path);
    file_ = std::make_unique<BlockFile>(path, std::move(opened), true);
    for (int i = 0; i < threads; ++i) {
      buffers_.emplace_back(static_cast<std::size_t>(chunk_bytes));
      std::fill_n(buffers_.back().data(), buffers_.back().size(), std::uint8_t{1});
    }
  }

  BlockFile &file() { return *file_; }

  // Reads bytes offset..offset+bytes, once or, with `seconds`, round and round for so long. Throws Error.
  DiskProbe run(std::uint64_t offset, std::uint64_t bytes, std::optional<double> seconds) {
    if (bytes == 0) fail(EK_INVALID_ARGUMENT, file_->path(), ": no bytes to read");
    const std::uint64_t chunks = (bytes + chunk_bytes_ - 1) / chunk_bytes_;
    std::atomic<std::uint64_t> next{0}, read{0};
    std::vector<std::optional<Error>> errors(buffers_.size());
    const Clock::time_point started = Clock::now();
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          const auto goes_on = [&](std::uint64_t chunk) {
            return seconds ? seconds_since(started) < *seconds : chunk < chunks;
          };
          for (std::uint64_t chunk = next++; goes_on(chunk); chunk = next++) {
            const std::uint64_t at = chunk % chunks * chunk_bytes_, size = std::min(chunk_bytes_, bytes - at);
            file_->read(buffers_[i].data(), size, offset + at, false);
            read += size;
          }
        } catch (const Error &error) {
          errors[i].emplace(error);
        }
      });
    }
    for (std::thread &thread : threads) thread.join();
    DiskProbe out;
    out.seconds = seconds_since(started);
    for (const std::optional<Error> &error : errors) {
      if (error) throw *error;
    }
    out.bytes = read;
    out.bytes_per_second = static_cast<double>(out.bytes) / out.seconds;
    out.mode = file_->mode();
    if (!file_->direct()) out.mode += ": " + file_->why_buffered();
    return out;
  }

 private:
  const std::uint64_t chunk_bytes_;
  std::unique_ptr<BlockFile> file_;
  std::vector<AlignedMemory> buffers_;
};

}  // namespace

DiskProbe probe_disk(const std::string &path, double seconds) {
  if (!(seconds >= kLeastSeconds && seconds <= kMostSeconds)) {
    fail(EK_INVALID_ARGUMENT, "a probe of ", seconds, " seconds; give ", kLeastSeconds, "..", kMostSeconds);
  }
  Readers readers(path, kReaders, kReadBytes);
  return readers.run(0, readers.file().size(), seconds);
}

DiskProbe read_stretch(const std::string &path, int threads, std::uint64_t chunk_bytes, std::uint64_t offset,
                       std::uint64_t bytes) {
  if (threads < 1 || chunk_bytes == 0) {
    fail(EK_INVALID_ARGUMENT, threads, " threads that read ", chunk_bytes, " bytes at a time; give at least one of each");
  }
  Readers readers(path, threads, chunk_bytes);
  if (!readers.file().direct()) fail(EK_OPEN_FAILED, path, ": ", readers.file().why_buffered());
  return readers.run(offset, bytes, std::nullopt);
}

}  // namespace edgekit
