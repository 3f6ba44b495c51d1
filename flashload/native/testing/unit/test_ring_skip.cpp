#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
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

std::vector<const Run *> runs_of(const FlashFile &file, const std::vector<std::size_t> &places) {
  std::vector<const Run *> out;
  for (const std::size_t place : places) out.push_back(&file.layout().runs[place]);
  return out;
}

class Random {
 public:
  explicit Random(std::uint32_t seed) : state_(seed) {}
  std::size_t below(std::size_t bound) { return ((state_ = state_ * 1664525 + 1013904223) >> 12) % bound; }

 private:
  std::uint32_t state_;
};

}  // namespace

// Against a model of the schedule: what was not skipped comes in order and whole, and every byte that was scheduled was
// either read or skipped.
EK_TEST(a_ring_with_random_skips_feeds_a_consumer) {
  const TemporaryFile made({2, 1, 5, 1, 3, 1, 4, 1});
  for (const Way way : kWays) {
    FlashFile file(made.path(), options(way, 2, kPage));
    for (std::uint32_t seed = 1; seed <= 6; ++seed) {
      Random random(seed);
      Ring ring(file, (5 + random.below(10)) * kPage);
      std::deque<const Run *> model;
      std::uint64_t scheduled = 0;
      std::atomic<bool> watching{true};
      std::thread watcher([&] {  // somebody who looks at the ring meanwhile
        while (watching) {
          (void)ring.statistics();
          (void)ring.next(3);
          std::this_thread::yield();
        }
      });
      std::vector<std::pair<const std::uint8_t *, std::size_t>> taken;
      bool good = true;
      for (int step = 0; step < 120; ++step) {
        if (model.size() < 6) {
          std::vector<std::size_t> places;
          for (int i = 0; i < 12; ++i) places.push_back(random.below(made.runs.size()));
          const std::vector<const Run *> more = runs_of(file, places);
          ring.schedule(more);
          for (const Run *run : more) scheduled += run->length;
          model.insert(model.end(), more.begin(), more.end());
        }
        if (random.below(3) == 0) {
          std::vector<const Run *> skipped;
          for (std::size_t i = 0; i < model.size(); ++i) {
            if (random.below(3) == 0) skipped.push_back(model[i]);
          }
          ring.skip(skipped);
          auto from = model.begin();  // each is skipped where it comes next
          for (const Run *run : skipped) from = model.erase(std::find(from, model.end(), run));
        } else if (!model.empty()) {
          try {
            taken.emplace_back(ring.take(*model.front()),
                               static_cast<std::size_t>(model.front() - file.layout().runs.data()));
            model.pop_front();
          } catch (const Error &) {  // no room beside what is taken
            good = good && !taken.empty();
          }
        }
        const std::vector<const Run *> next = ring.next(1000);
        good = good && std::equal(next.begin(), next.end(), model.begin(), model.end());
        for (const auto &[data, each] : taken) good = good && made.equal(each, data);
        good = good && ring.inconsistency().empty();
        while (taken.size() > random.below(4)) {
          const std::size_t which = random.below(taken.size());
          ring.release(taken[which].first);
          taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(which));
        }
      }
      while (!taken.empty()) {
        ring.release(taken.back().first);
        taken.pop_back();
      }
      for (const Run *run : model) ring.release(ring.take(*run));
      ring.cancel();  // until skipped reads have ended
      watching = false;
      watcher.join();
      const RingStatistics found = ring.statistics();
      EK_CHECK(good && ring.inconsistency().empty());
      EK_CHECK(found.bytes_read + found.bytes_skipped == scheduled);
    }
  }
}

EK_TEST(a_ring_with_skipped_reads_is_destroyed_and_cancelled_at_any_moment) {
  const TemporaryFile made({2, 1, 5, 1, 3, 1});
  for (const Way way : kWays) {
    FlashFile file(made.path(), options(way, 2, kPage));
    const std::vector<const Run *> order = runs_of(file, {0, 1, 2, 3, 4, 5});
    for (std::size_t round = 0; round < 24; ++round) {
      Ring ring(file, 8 * kPage);
      ring.schedule(order);
      ring.schedule(order);
      ring.skip({order.begin() + static_cast<std::ptrdiff_t>(round % 6), order.end()});
      if (round % 3 == 0) ring.skip(order);
      if (round % 2 == 0) {
        ring.cancel();
        EK_CHECK(ring.inconsistency().empty());
        ring.schedule(order);
        EK_CHECK(made.equal(0, ring.take(*order[0])));
      }
    }
  }
}

EK_TEST(what_is_skipped_in_time_is_not_read) {
  const TemporaryFile made({2, 2, 2, 2});
  Gate gate;
  std::atomic<int> reads{0};
  // One thread: the second run waits behind the first, the fourth has no room yet.
  FlashFile file(made.path(), options({true, false}, 1), faulty([&](std::uint64_t offset, std::uint64_t) {
                   if (offset < kPage) return INT64_MAX;  // the header
                   if (offset == kPage) gate.wait();
                   ++reads;
                   return INT64_MAX;
                 }));
  Ring ring(file, 6 * kPage);
  const std::vector<const Run *> order = runs_of(file, {0, 1, 2, 3});
  ring.schedule(order);
  gate.wait_for_arrivals(1);
  ring.skip({order[1], order[3]});
  EK_CHECK(ring.statistics().bytes_skipped == 2 * kPage);  // the other is told when its turn comes
  EK_CHECK(ring.inconsistency().empty());
  gate.open();
  for (const std::size_t run : {0, 2}) {
    const std::uint8_t *data = ring.take(*order[run]);
    EK_CHECK(made.equal(run, data));
    ring.release(data);
  }
  EK_CHECK(reads == 2 && ring.next(1).empty());
  EK_CHECK(ring.statistics().bytes_skipped == 4 * kPage && ring.statistics().bytes_read == 4 * kPage);
}

EK_TEST(memory_of_a_skipped_read_is_free_when_it_has_ended_and_not_before) {
  const TemporaryFile made({4, 4});
  Gate gate;
  FlashFile file(made.path(), options({true, false}, 1, 4 * kPage), faulty([&](std::uint64_t offset, std::uint64_t) {
                   if (offset == kPage) gate.wait();
                   return INT64_MAX;
                 }));
  Ring ring(file, 4 * kPage);
  const std::vector<const Run *> order = runs_of(file, {0, 1});
  ring.schedule(order);
  gate.wait_for_arrivals(1);
  ring.skip({order[0]});
  EK_CHECK(ring.inconsistency().empty());
  std::atomic<bool> over{false}, early{false};
  const std::uint8_t *data = nullptr;
  std::thread taker([&] {
    data = ring.take(*order[1]);
    early = !over;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time in which to make the mistake
  over = true;
  gate.open();
  taker.join();
  EK_CHECK(!early && made.equal(1, data));
}

EK_TEST(a_cancel_waits_for_skipped_reads) {
  const TemporaryFile made({4});
  Gate gate;
  FlashFile file(made.path(), options({true, false}, 1, 4 * kPage), faulty([&](std::uint64_t offset, std::uint64_t) {
                   if (offset == kPage) gate.wait();
                   return INT64_MAX;
                 }));
  Ring ring(file, 4 * kPage);
  const std::vector<const Run *> order = runs_of(file, {0});
  ring.schedule(order);
  gate.wait_for_arrivals(1);
  ring.skip(order);
  std::atomic<bool> over{false}, early{false};
  std::thread canceller([&] {
    ring.cancel();
    early = !over;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time in which to make the mistake
  over = true;
  gate.open();
  canceller.join();
  EK_CHECK(!early);
}

EK_TEST(only_what_is_scheduled_so_can_be_skipped) {
  const TemporaryFile made({1, 1, 1});
  FlashFile file(made.path(), options({false, false}));
  Ring ring(file, 2 * kPage);
  const std::vector<const Run *> order = runs_of(file, {0, 1, 2});
  EK_CHECK(status_of([&] { ring.skip({order[0]}); }) == EK_INTERNAL);
  ring.schedule(order);
  EK_CHECK(status_of([&] { ring.skip({order[1], order[0]}); }) == EK_INTERNAL);
  EK_CHECK(status_of([&] { ring.skip({order[1], order[1]}); }) == EK_INTERNAL);
  EK_CHECK(ring.next(5) == order && ring.inconsistency().empty());
  ring.skip({});
  ring.skip({order[0], order[2]});
  EK_CHECK(made.equal(1, ring.take(*order[1])));
  EK_CHECK(status_of([&] { ring.skip({order[1]}); }) == EK_INTERNAL);  // it is taken
}
