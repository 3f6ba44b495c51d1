#include "disk_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <system_error>
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
    std::atomic<bool> stop{false};
    std::vector<std::exception_ptr> errors(buffers_.size());
    const Clock::time_point started = Clock::now();
    std::vector<std::thread> threads;
    const auto work = [&](std::size_t i) {
      try {
        // One each at least: a busy machine may start a thread when the time is over.
        for (bool first = true; !stop; first = false) {
          const std::uint64_t chunk = next++;
          if (seconds ? !first && seconds_since(started) >= *seconds : chunk >= chunks) break;
          const std::uint64_t at = chunk % chunks * chunk_bytes_, size = std::min(chunk_bytes_, bytes - at);
          file_->read(buffers_[i].data(), size, offset + at, false);
          read += size;
        }
      } catch (...) {
        errors[i] = std::current_exception();
        stop = true;
      }
    };
    try {
      for (std::size_t i = 0; i < buffers_.size(); ++i) threads.emplace_back(work, i);
    } catch (const std::system_error &) {
      // As many as the system grants, if that is one.
    }
    for (std::thread &thread : threads) thread.join();
    if (threads.empty()) fail(EK_OUT_OF_MEMORY, "the system starts no thread to read with");
    DiskProbe out;
    out.seconds = seconds_since(started);
    for (const std::exception_ptr &error : errors) {
      if (error) std::rethrow_exception(error);
    }
    out.bytes = read;
    out.bytes_per_second = static_cast<double>(out.bytes) / out.seconds;
    out.direct = file_->direct();
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
