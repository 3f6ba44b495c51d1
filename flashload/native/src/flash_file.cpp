#include "flash_file.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "block_file.h"
#include "read_queue.h"
#include "xxh3.h"

namespace edgekit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kPrefixBytes = 64;
constexpr std::uint64_t kLengthBytes = 8;  // in front of the header

std::unique_ptr<SystemFile> open_system_file(const std::string &path, const FlashOptions &options,
                                             const FlashFile::Wrap &wrap) {
  if (options.threads < 1 || options.chunk_bytes < kRunAlignment || options.chunk_bytes % kRunAlignment != 0) {
    fail(EK_INVALID_ARGUMENT, "threads must be at least 1 and chunk_bytes a multiple of ", kRunAlignment, ", not ",
         options.threads, " and ", options.chunk_bytes);
  }
  std::unique_ptr<SystemFile> file = SystemFile::open(path);
  return wrap ? wrap(std::move(file)) : std::move(file);
}

FlashLayout read_layout(BlockFile &file, const std::optional<HeaderDigest> &expected) {
  std::string prefix(static_cast<std::size_t>(std::min(file.size(), kPrefixBytes)), '\0');
  file.read(prefix.data(), prefix.size(), 0, true);
  const std::uint64_t length = flash_header_length(prefix, file.size(), file.path());
  std::string start(static_cast<std::size_t>(kLengthBytes + length), '\0');
  file.read(start.data(), start.size(), 0, true);
  if (expected && (start.size() != expected->size || xxh3_64(start.data(), start.size()) != expected->xxh3)) {
    fail(EK_CHECKSUM_MISMATCH, file.path(),
         ": its header is not the one that the manifest was written for: the file is damaged or another one; copy or "
         "export the bundle again");
  }
  return parse_flash_header(std::string_view(start).substr(kLengthBytes), file.size(), file.path());
}

// What is read for a part of a run: whole pages, but for the end of the file. Calls
// read(offset in the file, place in the run, size) for spans of at most `chunk_bytes`.
template <typename Read>
void for_each_read(const FlashSegment &part, std::uint64_t chunk_bytes, std::uint64_t file_size, const Read &read) {
  const std::uint64_t lead = part.offset % kRunAlignment, start = part.offset - lead;
  const std::uint64_t pages = (lead + part.bytes + kRunAlignment - 1) / kRunAlignment * kRunAlignment;
  const std::uint64_t size = std::min(pages, file_size - start);
  for (std::uint64_t at = 0; at < size; at += chunk_bytes) {
    read(start + at, part.place - lead + at, std::min(chunk_bytes, size - at));
  }
}

// Which runs have been verified. A run's mark counts only when nobody has written to the file since before its read
// began: every change of the modification time removes the marks and raises `generation_`.
class Verified {
 public:
  Verified(BlockFile &file, std::size_t runs) : file_(file), modified_(file.modified()), runs_(runs, false) {}

  // What add() wants to know, from before the first byte is read. Throws Error (EK_FILE_CHANGED).
  std::uint64_t generation() {
    std::lock_guard<std::mutex> lock(mutex_);
    look();
    return generation_;
  }

  // Throws Error (EK_FILE_CHANGED).
  bool has(std::size_t run) {
    std::lock_guard<std::mutex> lock(mutex_);
    look();
    return runs_[run];
  }

  // As far as is known without looking at the file.
  bool had(std::size_t run) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    return runs_[run];
  }

  void add(std::size_t run, std::uint64_t generation) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (generation == generation_) runs_[run] = true;
  }

 private:
  void look() {
    const std::int64_t modified = file_.modified();
    if (modified == modified_) return;
    modified_ = modified;
    ++generation_;
    runs_.assign(runs_.size(), false);
  }

  BlockFile &file_;
  std::mutex mutex_;
  std::int64_t modified_;
  std::uint64_t generation_ = 0;
  std::vector<bool> runs_;
};

}  // namespace

struct FlashFile::Implementation {
  class RunRead;

  Implementation(const std::string &path, const FlashOptions &options, const Wrap &wrap)
      : chunk_bytes(options.chunk_bytes),
        file(options.shown.empty() ? path : options.shown, open_system_file(path, options, wrap), options.direct),
        layout(read_layout(file, options.header)),
        verified(file, layout.runs.size()) {
    std::string no_uring;
    if (options.io_uring) queue = make_io_uring(file, options.threads, no_uring);
    io_mode = file.mode() + (queue ? " io_uring" : " pread");
    if (!queue) queue = make_read_pool(file, options.threads);
    const char *separator = ": ";
    if (!file.direct()) {
      io_mode += separator + file.why_buffered();
      separator = "; ";
    }
    if (!no_uring.empty()) io_mode += separator + ("no io_uring: " + no_uring);
  }

  // The run of this file that has that name: `run` may be a copy.
  std::size_t index_of(const Run &run) const {
    const Run &own = layout.run(run.name);
    if (own.offset != run.offset || own.length != run.length || own.length == 0) {
      fail(EK_INVALID_ARGUMENT, file.path(), ": run ", run.name, " has ", own.length, " bytes at ", own.offset,
           ", not ", run.length, " at ", run.offset);
    }
    return static_cast<std::size_t>(&own - layout.runs.data());
  }

  void verify(std::size_t index, const std::uint8_t *data, std::uint64_t generation) {
    if (verified.has(index)) return;
    const Run &run = layout.runs[index];
    const Clock::time_point started = Clock::now();
    const std::vector<FlashSegment> parts = run.parts();
    std::vector<std::uint64_t> found;
    for (const FlashSegment &part : parts) {
      found.push_back(xxh3_64(data + part.place, static_cast<std::size_t>(part.bytes)));
      if (found.back() != part.xxh3) break;
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - started).count();
    {
      std::lock_guard<std::mutex> lock(mutex);
      verify_seconds += seconds;
    }
    for (std::size_t i = 0; i < found.size(); ++i) compare(run, parts[i], found[i]);
    verified.add(index, generation);
  }

  void compare(const Run &run, const FlashSegment &part, std::uint64_t found) {
    if (found == part.xxh3) return;
    file.require_unchanged();
    fail(EK_CHECKSUM_MISMATCH, file.path(), ": run ", run.name, " has xxh3 ", hex64(found), ", expected ",
         hex64(part.xxh3), ": the file is damaged; copy or export it again");
  }

  const std::uint64_t chunk_bytes;
  BlockFile file;
  const FlashLayout layout;
  Verified verified;
  std::string io_mode;

  std::atomic<ReadObserver *> observer{nullptr};
  std::mutex mutex;
  double verify_seconds = 0;
  std::uint64_t runs_read = 0;

  std::unique_ptr<ReadQueue> queue;  // last: its threads end before the rest goes
};

class FlashFile::Implementation::RunRead final : public PendingRead, public ReadOwner {
 public:
  RunRead(Implementation &file, std::size_t index, std::uint8_t *buffer, std::uint64_t parts, Done done)
      : file_(file),
        index_(index),
        buffer_(buffer),
        generation_(file.verified.generation()),
        observer_(file.observer.load()),
        begun_(observer_ == nullptr ? Clock::time_point() : Clock::now()),
        done_(std::move(done)),
        parts_left_(parts) {}

  void cancel() noexcept override { cancelled_.store(true, std::memory_order_relaxed); }

  bool begin() noexcept override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!error_ && !cancelled_.load(std::memory_order_relaxed)) return true;
    skipped_ = true;
    return false;
  }

  Left ended(const Error *error) noexcept override {
    bool ok;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (error != nullptr && !error_) error_ = *error;
      if (--parts_left_ != 0) return Left::parts;
      ok = !error_ && !skipped_;
    }
    return ok && !file_.verified.had(index_) ? Left::long_finish : Left::finish;
  }

  // Every part has ended: no other thread touches this object any more, but for cancel().
  void finish() noexcept override {
    const Run &run = file_.layout.runs[index_];
    try {
      if (!error_ && skipped_) error_.emplace(EK_STOPPED, "the read of run " + run.name + " was cancelled");
      if (!error_) file_.verify(index_, buffer_, generation_);
    } catch (const Error &error) {
      error_ = error;
    } catch (const std::bad_alloc &) {
      error_.emplace(EK_OUT_OF_MEMORY, "no memory is left to read run " + run.name);
    }
    if (!error_) {
      std::lock_guard<std::mutex> lock(file_.mutex);
      ++file_.runs_read;
    }
    if (observer_ != nullptr) observer_->read(run, begun_, Clock::now());
    done_(error_ ? &*error_ : nullptr);
  }

 private:
  Implementation &file_;
  const std::size_t index_;
  std::uint8_t *const buffer_;
  const std::uint64_t generation_;
  ReadObserver *const observer_;
  const Clock::time_point begun_;
  const Done done_;
  std::atomic<bool> cancelled_{false};

  std::mutex mutex_;
  std::uint64_t parts_left_;
  bool skipped_ = false;
  std::optional<Error> error_;
};

FlashFile::FlashFile(const std::string &path, const FlashOptions &options, const Wrap &wrap)
    : implementation_(std::make_unique<Implementation>(path, options, wrap)) {}

FlashFile::~FlashFile() = default;

const FlashLayout &FlashFile::layout() const noexcept { return implementation_->layout; }

const std::string &FlashFile::path() const noexcept { return implementation_->file.path(); }

const std::string &FlashFile::io_mode() const noexcept { return implementation_->io_mode; }

FlashStatistics FlashFile::statistics() const {
  const BlockStatistics blocks = implementation_->file.statistics();
  FlashStatistics now;
  now.bytes_read = blocks.bytes_read;
  now.fallbacks = blocks.fallbacks;
  now.short_reads = blocks.short_reads;
  now.interrupts = blocks.interrupts;
  std::lock_guard<std::mutex> lock(implementation_->mutex);
  now.runs_read = implementation_->runs_read;
  now.verify_seconds = implementation_->verify_seconds;
  return now;
}

std::shared_ptr<PendingRead> FlashFile::submit(const Run &run, std::uint8_t *buffer, Done done) {
  Implementation &file = *implementation_;
  const std::size_t index = file.index_of(run);
  std::vector<ReadRequest> requests;
  for (const FlashSegment &part : file.layout.runs[index].parts()) {
    for_each_read(part, file.chunk_bytes, file.file.size(),
                  [&](std::uint64_t offset, std::uint64_t place, std::uint64_t size) {
                    ReadRequest request;
                    request.out = buffer + place;
                    request.size = size;
                    request.offset = offset;
                    requests.push_back(std::move(request));
                  });
  }
  auto read = std::make_shared<Implementation::RunRead>(file, index, buffer, requests.size(), std::move(done));
  for (ReadRequest &request : requests) request.owner = read;
  file.queue->push(std::move(requests));
  return read;
}

void FlashFile::observe(ReadObserver *observer) noexcept { implementation_->observer = observer; }

void FlashFile::read(const Run &run, std::uint8_t *buffer) {
  // Shared with the callback: the thread that makes it may still be inside when this one returns.
  struct Outcome {
    std::mutex mutex;
    std::condition_variable ended;
    bool over = false;
    std::optional<Error> error;
  };
  auto outcome = std::make_shared<Outcome>();
  submit(run, buffer, [outcome](const Error *error) {
    std::lock_guard<std::mutex> lock(outcome->mutex);
    outcome->over = true;
    if (error != nullptr) outcome->error = *error;
    outcome->ended.notify_all();
  });
  std::unique_lock<std::mutex> lock(outcome->mutex);
  outcome->ended.wait(lock, [&] { return outcome->over; });
  if (outcome->error) throw *outcome->error;
}

void FlashFile::verify(const Run &run) {
  Implementation &file = *implementation_;
  const std::size_t index = file.index_of(run);
  const std::uint64_t generation = file.verified.generation();
  AlignedMemory block(static_cast<std::size_t>(std::min(file.chunk_bytes, run.length)));
  for (const FlashSegment &part : file.layout.runs[index].parts()) {
    Xxh3 digest;
    for_each_read(part, block.size(), file.file.size(), [&](std::uint64_t offset, std::uint64_t, std::uint64_t size) {
      file.file.read(block.data(), size, offset, false);
      const std::uint64_t begin = std::max(part.offset, offset);
      const std::uint64_t end = std::min(part.offset + part.bytes, offset + size);
      if (begin < end) digest.update(block.data() + (begin - offset), static_cast<std::size_t>(end - begin));
    });
    file.compare(run, part, digest.digest());
  }
  file.verified.add(index, generation);
}

void FlashFile::read_bytes(std::uint64_t offset, std::size_t size, void *out) {
  BlockFile &file = implementation_->file;
  if (offset > file.size() || size > file.size() - offset) {
    fail(EK_INVALID_ARGUMENT, file.path(), ": ", size, " bytes at ", offset, " are outside its ", file.size(),
         " bytes");
  }
  file.read(out, size, offset, true);
}

void FlashFile::read_part(const Run &run, std::uint64_t offset, std::size_t size, void *out) {
  for (const FlashSegment &part : run.parts()) {
    if (offset < part.place || offset - part.place > part.bytes || size > part.bytes - (offset - part.place)) continue;
    return read_bytes(part.offset + (offset - part.place), size, out);
  }
  fail(EK_INVALID_ARGUMENT, path(), ": run ", run.name, ": ", size, " bytes at ", offset, " are not in one of its tensors");
}

}  // namespace edgekit
