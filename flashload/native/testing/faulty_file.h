// A disk that fails on command, between the reading code and the system.
#ifndef EDGEKIT_TESTING_FAULTY_FILE_H
#define EDGEKIT_TESTING_FAULTY_FILE_H

#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "flash_file.h"
#include "system_file.h"

namespace edgekit_testing {

// Called around every read but the probes, from any thread. It may wait; what it returns is a negative errno value,
// or the most bytes that the read may report.
using OnRead = std::function<std::int64_t(std::uint64_t offset, std::uint64_t size)>;

// What the system is made to refuse.
struct Refusals {
  bool direct_open = false;   // O_DIRECT
  bool direct_read = false;   // the probing direct read
  bool uring = false;         // io_uring_setup
  int uring_enters = -1;      // io_uring_enter works this many times; -1: always
};

class FaultyFile final : public edgekit::SystemFile {
 public:
  FaultyFile(std::unique_ptr<edgekit::SystemFile> file, OnRead on_read, Refusals refusals)
      : file_(std::move(file)), on_read_(std::move(on_read)), refusals_(refusals) {}

  edgekit::FileIdentity identity() const override { return file_->identity(); }
  bool identity_at_path(edgekit::FileIdentity &found) const override { return file_->identity_at_path(found); }

  std::string open_direct() override {
    return refusals_.direct_open ? "the file system refuses O_DIRECT (a test)" : file_->open_direct();
  }
  std::uint64_t direct_alignment() const override { return file_->direct_alignment(); }
  const char *direct_name() const override { return file_->direct_name(); }

  std::int64_t read(bool direct, void *out, std::size_t size, std::uint64_t offset) override {
    if (direct && !probed_) {
      probed_ = true;
      return refusals_.direct_read ? -EINVAL : file_->read(direct, out, size, offset);
    }
    const std::int64_t most = on_read_ ? on_read_(offset, size) : INT64_MAX;
    if (most < 0) return most;
    // A cut-short read has filled more than it tells: a direct read cannot ask for less than a block.
    const std::int64_t result = file_->read(direct, out, size, offset);
    return result < most ? result : most;
  }
  bool interrupted(std::int64_t code) const override { return code == -EINTR || file_->interrupted(code); }
  std::string describe(std::int64_t code) const override { return file_->describe(code); }
  void forget(std::uint64_t offset, std::uint64_t size) override { file_->forget(offset, size); }

  int descriptor(bool direct) const override { return file_->descriptor(direct); }
  int uring_fault(UringCall call) override {
    if (call == UringCall::setup) return refusals_.uring ? EPERM : 0;
    if (refusals_.uring_enters < 0) return 0;
    if (refusals_.uring_enters == 0) return ENXIO;
    --refusals_.uring_enters;
    return 0;
  }
  std::int64_t completed(std::int64_t result, std::size_t size, std::uint64_t offset) override {
    if (result < 0 || !on_read_) return result;
    const std::int64_t most = on_read_(offset, size);
    return most < result ? most : result;
  }

 private:
  std::unique_ptr<edgekit::SystemFile> file_;
  const OnRead on_read_;
  Refusals refusals_;     // uring_enters: of the thread that owns the io_uring
  bool probed_ = false;  // changes while the file is being opened, by one thread
};

inline edgekit::FlashFile::Wrap faulty(OnRead on_read, Refusals refusals = {}) {
  return [on_read = std::move(on_read), refusals](std::unique_ptr<edgekit::SystemFile> file) {
    return std::make_unique<FaultyFile>(std::move(file), on_read, refusals);
  };
}

// The same from what crosses a C interface. `on_read`: see OnRead; null: an honest disk. `refuse`: 1 O_DIRECT, 2 the
// probing direct read, 4 io_uring. `uring_enters`: after so many, io_uring_enter fails; -1: never.
using OnReadPointer = std::int64_t (*)(std::uint64_t offset, std::uint64_t size);

inline edgekit::FlashFile::Wrap faulty(OnReadPointer on_read, std::uint32_t refuse, std::int32_t uring_enters) {
  Refusals refusals;
  refusals.direct_open = (refuse & 1) != 0;
  refusals.direct_read = (refuse & 2) != 0;
  refusals.uring = (refuse & 4) != 0;
  refusals.uring_enters = uring_enters;
  return faulty(on_read != nullptr ? OnRead(on_read) : OnRead(), refusals);
}

}  // namespace edgekit_testing

#endif  // EDGEKIT_TESTING_FAULTY_FILE_H
