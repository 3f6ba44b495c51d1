// A disk that fails at random under everything that reads: what comes is right, or one typed error.
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "../faulty_file.h"
#include "flash_fixtures.h"
#include "ring.h"
#include "unit.h"

using namespace edgekit;
using namespace edgekit_testing;

namespace {

// Numbers from any thread; which thread gets which is left to chance.
class Dice {
 public:
  std::uint64_t roll() {
    std::uint64_t x = state_.fetch_add(0x9E3779B97F4A7C15u) + 0x9E3779B97F4A7C15u;  // splitmix64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  std::uint64_t below(std::uint64_t limit) { return roll() % limit; }

 private:
  std::atomic<std::uint64_t> state_{1};
};

struct BadDisk {
  Dice dice;
  std::atomic<bool> bad{false};
  std::atomic<int> failures{0};

  std::int64_t on_read(std::uint64_t size) {
    if (!bad) return INT64_MAX;
    switch (dice.below(16)) {
      case 0:
        ++failures;
        return -EIO;
      case 1:
        ++failures;
        return 0;
      case 2:
        return -EINTR;
      case 3:
        return -EAGAIN;  // of a disk that is not asked to wait: io_uring repeats it, the pool fails
      case 4:
      case 5:
      case 6:
        return static_cast<std::int64_t>(1 + dice.below(size));
      case 7:
        std::this_thread::yield();
        return INT64_MAX;
      default:
        return INT64_MAX;
    }
  }

  FlashFile::Wrap wrap() {
    return faulty([this](std::uint64_t, std::uint64_t size) { return on_read(size); });
  }
};

bool is_fault(std::optional<ek_status> status) { return status == EK_READ_FAILED || status == EK_TRUNCATED_FILE; }

}  // namespace

EK_TEST(a_ring_on_a_bad_disk_gives_right_bytes_or_typed_errors) {
  const TemporaryFile made({2, 1, 5, 1, 3, 1});
  for (const Way way : kWays) {
    BadDisk disk;
    FlashFile file(made.path(), options(way, 3, kPage), disk.wrap());
    disk.bad = true;
    Ring ring(file, 9 * kPage);
    int right = 0, failed = 0;
    bool good = true;
    for (int round = 0; round < 40; ++round) {
      std::vector<const Run *> order;
      for (int i = 0; i < 12; ++i) order.push_back(&file.layout().runs[disk.dice.below(made.runs.size())]);
      ring.schedule(order);
      std::size_t at = 0;
      for (; at < order.size(); ++at) {
        const std::uint8_t *data = nullptr;
        const std::optional<ek_status> status = status_of([&] { data = ring.take(*order[at]); });
        if (status) {
          good = good && is_fault(status) && data == nullptr;
          ++failed;
          if (disk.dice.below(2) == 0) break;  // ends the step
          continue;
        }
        good = good && made.equal(static_cast<std::size_t>(order[at] - file.layout().runs.data()), data);
        ring.release(data);
        ++right;
      }
      if (at < order.size()) ring.cancel();
      good = good && ring.inconsistency().empty();
    }
    ring.cancel();
    EK_CHECK(good && right > 0 && failed > 0 && disk.failures > 0);
    disk.bad = false;
    for (const Run &run : file.layout().runs) {
      ring.schedule({&run});
      const std::uint8_t *data = ring.take(run);
      EK_CHECK(made.equal(static_cast<std::size_t>(&run - file.layout().runs.data()), data));
      ring.release(data);
    }
  }
}

EK_TEST(many_threads_read_from_a_bad_disk) {
  const TemporaryFile made({1, 7, 2, 16, 1, 3});
  for (const Way way : kWays) {
    BadDisk disk;
    FlashFile file(made.path(), options(way, 3, kPage), disk.wrap());
    disk.bad = true;
    std::atomic<int> right{0}, failed{0}, wrong{0};
    std::vector<std::thread> callers;
    for (std::size_t caller = 0; caller < 4; ++caller) {
      callers.emplace_back([&, caller] {
        for (std::size_t round = 0; round < 20; ++round) {
          const std::size_t index = (caller + round) % made.runs.size();
          const Run &run = file.layout().runs[index];
          AlignedMemory buffer(run.length);
          const std::optional<ek_status> whole = status_of([&] { file.read(run, buffer.data()); });
          char row[100];
          const std::optional<ek_status> part = status_of([&] { file.read_bytes(run.offset + 50, sizeof row, row); });
          for (const std::optional<ek_status> &status : {whole, part}) ++(is_fault(status) ? failed : right);
          if (!whole && !made.equal(index, buffer.data())) ++wrong;
          if (!part && made.runs[index].compare(50, sizeof row, row, sizeof row) != 0) ++wrong;
          if ((whole && !is_fault(whole)) || (part && !is_fault(part))) ++wrong;
        }
      });
    }
    for (std::thread &caller : callers) caller.join();
    EK_CHECK(wrong == 0 && right > 0 && failed > 0);
  }
}

EK_TEST(a_file_is_cut_and_restored_under_a_ring) {
  const TemporaryFile made({2, 1, 5, 1, 3, 1});
  std::ifstream original(std::filesystem::u8path(made.path()), std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(original), std::istreambuf_iterator<char>()};
  for (const Way way : kWays) {
    FlashFile file(made.path(), options(way, 3, kPage));
    Ring ring(file, 9 * kPage);
    for (const std::uint64_t kept : {std::uint64_t{0}, 4 * kPage, 4 * kPage + 100}) {
      std::vector<const Run *> order;
      for (int i = 0; i < 60; ++i) order.push_back(&file.layout().runs[static_cast<std::size_t>(i) % made.runs.size()]);
      ring.schedule(order);
      std::thread cutter([&] { std::filesystem::resize_file(std::filesystem::u8path(made.path()), kept); });
      std::optional<ek_status> ended;
      bool good = true;
      for (std::size_t i = 0; i < order.size() && !ended; ++i) {
        if (i == 10) cutter.join();
        ended = status_of([&] {
          const std::uint8_t *data = ring.take(*order[i]);
          good = good && made.equal(i % made.runs.size(), data);
          ring.release(data);
        });
      }
      if (cutter.joinable()) cutter.join();
      EK_CHECK(good && ended == EK_FILE_CHANGED);
      ring.cancel();
      EK_CHECK(ring.inconsistency().empty());
      std::ofstream(std::filesystem::u8path(made.path()), std::ios::binary | std::ios::in) << content;
      ring.schedule({order[0]});
      const std::uint8_t *data = ring.take(*order[0]);
      EK_CHECK(made.equal(0, data));
      ring.release(data);
    }
  }
}
