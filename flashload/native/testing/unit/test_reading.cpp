#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "../faulty_file.h"
#include "flash_fixtures.h"
#include "ring.h"
#include "unit.h"

using namespace edgekit;
using namespace edgekit_testing;

EK_TEST(memory_is_aligned_zeroed_and_movable) {
  for (std::size_t size : {std::size_t{1}, std::size_t{4097}, (std::size_t{4} << 20) - 1, (std::size_t{9} << 20) + 5}) {
    AlignedMemory memory(size);
    EK_CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % 4096 == 0);
    for (std::size_t i = 0; i < size; ++i) EK_CHECK(memory.data()[i] == 0);
    memory.data()[size - 1] = 7;
    AlignedMemory moved(std::move(memory));
    EK_CHECK(memory.data() == nullptr && memory.size() == 0 && moved.size() == size && moved.data()[size - 1] == 7);
    memory = std::move(moved);
    EK_CHECK(memory.data()[size - 1] == 7);
  }
  EK_CHECK(AlignedMemory(0).data() == nullptr);
  for (std::size_t size : {SIZE_MAX, SIZE_MAX / 4}) {
    EK_CHECK(status_of([&] { AlignedMemory memory(size); }) == EK_OUT_OF_MEMORY);
  }
}

EK_TEST(many_threads_submit_at_once) {
  const TemporaryFile made({1, 7, 2, 16, 1, 3});
  for (const Way way : kWays) {
    FlashFile file(made.path(), options(way));
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (std::size_t caller = 0; caller < 4; ++caller) {
      callers.emplace_back([&, caller] {
        for (std::size_t round = 0; round < 12; ++round) {
          const std::size_t index = (caller + round) % made.runs.size();
          const Run &run = file.layout().runs[index];
          AlignedMemory buffer(run.length);
          file.read(run, buffer.data());
          std::uint8_t row[100];
          file.read_bytes(run.offset + 50, sizeof row, row);
          if (!made.equal(index, buffer.data()) || !std::equal(row, row + 100, buffer.data() + 50)) ++wrong;
        }
      });
    }
    for (std::thread &caller : callers) caller.join();
    EK_CHECK(wrong == 0);
    EK_CHECK(file.statistics().runs_read == 48 && file.statistics().fallbacks == 0);
  }
}

EK_TEST(a_closing_file_finishes_what_was_submitted) {
  const TemporaryFile made({2, 5, 9});
  for (const Way way : kWays) {
    std::vector<AlignedMemory> buffers;
    std::atomic<int> done{0}, failed{0};
    {
      FlashFile file(made.path(), options(way, 2));
      for (int round = 0; round < 4; ++round) {
        for (const Run &run : file.layout().runs) {
          buffers.emplace_back(run.length);
          file.submit(run, buffers.back().data(), [&](const Error *error) { ++(error == nullptr ? done : failed); });
        }
      }
    }
    EK_CHECK(done == 12 && failed == 0);
    for (std::size_t i = 0; i < buffers.size(); ++i) EK_CHECK(made.equal(i % 3, buffers[i].data()));
  }
}

EK_TEST(nothing_is_told_while_a_part_is_still_being_read) {
  const TemporaryFile made({8});
  Gate gate;
  std::atomic<bool> failed{false};
  // The second part is held back, the third one fails, the fourth is skipped.
  FlashFile file(made.path(), options({true, false}, 2, kPage), faulty([&](std::uint64_t offset, std::uint64_t) {
                   if (offset == 2 * kPage) gate.wait();
                   if (offset == 3 * kPage) {
                     gate.wait_for_arrivals(1);
                     failed = true;
                     return -std::int64_t{EIO};
                   }
                   return INT64_MAX;
                 }));
  const Run &run = file.layout().runs[0];
  AlignedMemory buffer(run.length);
  std::atomic<bool> opened{false}, early{false};
  Gate ended;
  std::optional<Error> outcome;
  file.submit(run, buffer.data(), [&](const Error *error) {
    if (error != nullptr) outcome = *error;
    early = !opened;
    ended.open();
  });
  while (!failed) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time in which to make the mistake
  opened = true;
  gate.open();
  ended.wait();
  EK_CHECK(!early);
  EK_CHECK(outcome && outcome->status() == EK_READ_FAILED);
}

EK_TEST(a_cancelled_read_skips_what_has_not_begun) {
  const TemporaryFile made({8});
  Gate gate;
  std::atomic<int> reads{0};
  FlashFile file(made.path(), options({true, false}, 1, kPage), faulty([&](std::uint64_t offset, std::uint64_t) {
                   if (offset < kPage) return INT64_MAX;  // the header
                   ++reads;
                   gate.wait();
                   return INT64_MAX;
                 }));
  AlignedMemory buffer(file.layout().runs[0].length);
  Gate ended;
  std::optional<Error> outcome;
  auto pending = file.submit(file.layout().runs[0], buffer.data(), [&](const Error *error) {
    if (error != nullptr) outcome = *error;
    ended.open();
  });
  gate.wait_for_arrivals(1);
  pending->cancel();
  gate.open();
  ended.wait();
  EK_CHECK(outcome && outcome->status() == EK_STOPPED);
  EK_CHECK(reads == 1);
  file.read(file.layout().runs[0], buffer.data());
  EK_CHECK(made.equal(0, buffer.data()));
}

EK_TEST(reads_go_on_when_the_kernel_stops_taking_submissions) {
  const TemporaryFile made({8, 3, 5});
  const auto uses_uring = [](const FlashFile &file) {
    return file.io_mode().find("io_uring") < file.io_mode().find(':');
  };
  const bool allowed = uses_uring(FlashFile(made.path(), options({true, true})));
  for (int enters : {0, 1, 2, 3, 6}) {
    Refusals refusals;
    refusals.uring_enters = enters;
    FlashFile file(made.path(), options({true, true}, 2, kPage), faulty(nullptr, refusals));
    for (std::size_t round = 0; round < 2; ++round) {
      for (std::size_t i = 0; i < made.runs.size(); ++i) {
        AlignedMemory buffer(file.layout().runs[i].length);
        file.read(file.layout().runs[i], buffer.data());
        EK_CHECK(made.equal(i, buffer.data()));
      }
    }
    // Without any call of the kernel the probe fails, and the pool serves.
    EK_CHECK(uses_uring(file) == (allowed && enters != 0));
    EK_CHECK((file.statistics().fallbacks > 0) == uses_uring(file));
  }
}

EK_TEST(a_ring_feeds_a_consumer) {
  const TemporaryFile made({2, 1, 5, 1, 3, 1});
  for (const Way way : kWays) {
    FlashFile file(made.path(), options(way));
    for (std::uint64_t pages : {5, 8, 14}) {
      Ring ring(file, pages * kPage);
      std::vector<const Run *> order;
      std::uint32_t state = 7;
      for (int i = 0; i < 60; ++i) {
        order.push_back(&file.layout().runs[((state = state * 1664525 + 1013904223) >> 20) % made.runs.size()]);
      }
      ring.schedule(order);
      std::atomic<bool> watching{true};
      std::thread watcher([&] {  // somebody who looks at the counters meanwhile
        while (watching) {
          (void)ring.statistics();
          (void)ring.ready(*order[0]);
          std::this_thread::yield();
        }
      });
      std::vector<std::pair<const std::uint8_t *, std::size_t>> taken;
      bool good = true;
      for (const Run *run : order) {
        const std::size_t index = static_cast<std::size_t>(run - file.layout().runs.data());
        for (;;) {
          try {
            taken.emplace_back(ring.take(*run), index);
            break;
          } catch (const Error &) {
            ring.release(taken.front().first);
            taken.erase(taken.begin());
          }
        }
        for (const auto &[data, each] : taken) good = good && made.equal(each, data);
        good = good && ring.inconsistency().empty();
        if (taken.size() == 3) {
          const std::size_t which = (state = state * 1664525 + 1013904223) >> 20;
          ring.release(taken[which % 3].first);
          taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(which % 3));
        }
      }
      watching = false;
      watcher.join();
      EK_CHECK(good && ring.statistics().runs_read == 60);
    }
  }
}

EK_TEST(a_ring_is_destroyed_and_cancelled_at_any_moment) {
  const TemporaryFile made({2, 1, 5, 1, 3, 1});
  for (const Way way : kWays) {
    FlashFile file(made.path(), options(way, 2, kPage));
    std::vector<const Run *> order;
    for (const Run &run : file.layout().runs) order.push_back(&run);
    for (int round = 0; round < 12; ++round) {
      Ring ring(file, 8 * kPage);
      ring.schedule(order);
      ring.schedule(order);
      for (int i = 0; i < round % 6; ++i) ring.release(ring.take(*order[static_cast<std::size_t>(i)]));
      if (round % 2 == 0) {
        ring.cancel();
        EK_CHECK(ring.inconsistency().empty());
        ring.schedule(order);
        EK_CHECK(made.equal(0, ring.take(*order[0])));
      }
    }
  }
}

EK_TEST(a_take_hears_of_a_cancel_from_another_thread) {
  const TemporaryFile made({4});
  Gate gate;
  FlashFile file(made.path(), options({true, false}, 1), faulty([&](std::uint64_t offset, std::uint64_t) {
                   if (offset >= kPage) gate.wait();
                   return INT64_MAX;
                 }));
  Ring ring(file, 4 * kPage);
  ring.schedule({&file.layout().runs[0]});
  gate.wait_for_arrivals(1);
  std::optional<ek_status> outcome;
  std::thread taker([&] { outcome = status_of([&] { ring.take(file.layout().runs[0]); }); });
  std::thread canceller([&] { ring.cancel(); });
  taker.join();  // before the read ends: it need not wait for that; EK_INTERNAL when the cancel came first
  EK_CHECK(outcome == EK_STOPPED || outcome == EK_INTERNAL);
  gate.open();
  canceller.join();
  EK_CHECK(ring.inconsistency().empty());
}
