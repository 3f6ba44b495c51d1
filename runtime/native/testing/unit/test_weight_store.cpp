#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "flash_fixtures.h"
#include "session/process.h"
#include "session/weight_store.h"
#include "unit.h"

using namespace edgekit;
using namespace edgekit_testing;

namespace {

// A pass uses every run of the file in order.
struct Store {
  Store(const TemporaryFile &made, const std::vector<std::size_t> &pinned, std::uint64_t ring_pages)
      : file(made.path(), options({true, true})), runs(file.layout().runs) {
    for (const std::size_t place : pinned) plan.pinned.insert(runs[place].name);
    plan.ring_bytes = ring_pages * kPage;
  }

  WeightStore open() {
    return WeightStore(file, plan, [this](Pass) {
      std::vector<const Run *> all;
      for (const Run &run : runs) all.push_back(&run);
      return all;
    });
  }

  FlashFile file;
  const std::vector<Run> &runs;
  ResidencyPlan plan;
};

bool pass_is_right(WeightStore &weights, const Store &store, const TemporaryFile &made) {
  weights.begin(Pass::denoise, Pass::denoise);
  bool right = true;
  for (std::size_t i = 0; i < store.runs.size(); ++i) {
    const WeightStore::Use use(weights, store.runs[i]);
    right = right && made.equal(i, use.data());
  }
  return right;
}

// In place and at the same time, as damage is: what was verified before is taken to be right still.
void flip_byte(const TemporaryFile &made, std::uint64_t offset) {
  std::fstream file(std::filesystem::u8path(made.path()), std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(byte);
}

}  // namespace

EK_TEST(pinned_and_streamed_runs_change_places) {
  const TemporaryFile made({2, 2, 2, 3, 2, 3});
  Store store(made, {0, 3, 4}, 6);
  WeightStore weights = store.open();
  const auto run = [&](std::size_t place) { return &store.runs[place]; };
  const std::uint8_t *first = weights.pinned(*run(0)), *fourth = weights.pinned(*run(3));
  EK_CHECK(pass_is_right(weights, store, made));
  weights.exchange({});
  EK_CHECK(weights.bytes_exchanged() == 0);
  weights.exchange({{run(1), run(0)}, {run(5), run(3)}});  // with the next pass read ahead
  EK_CHECK(weights.pinned(*run(1)) == first && weights.pinned(*run(5)) == fourth);
  EK_CHECK(weights.pinned(*run(0)) == nullptr && weights.pinned(*run(3)) == nullptr);
  EK_CHECK(weights.bytes_exchanged() == 5 * kPage);
  for (int i = 0; i < 3; ++i) EK_CHECK(pass_is_right(weights, store, made));
  weights.exchange({{run(0), run(1)}});
  weights.exchange({{run(1), run(4)}});  // out and in again, elsewhere
  EK_CHECK(weights.pinned(*run(0)) == first && weights.pinned(*run(1)) != nullptr);
  EK_CHECK(weights.pinned(*run(4)) == nullptr);
  EK_CHECK(pass_is_right(weights, store, made));
}

EK_TEST(a_run_that_cannot_be_read_is_not_exchanged) {
  const TemporaryFile made({2, 2, 2, 2, 2});
  Store store(made, {0, 1}, 6);
  const auto run = [&](std::size_t place) { return &store.runs[place]; };
  flip_byte(made, store.runs[3].offset + 5);
  WeightStore weights(store.open());
  // The file was written to after it was opened.
  weights.exchange({{run(3), run(0)}, {run(2), run(1)}});
  EK_CHECK(weights.pinned(*run(3)) == nullptr && made.equal(0, weights.pinned(*run(0))));
  EK_CHECK(made.equal(2, weights.pinned(*run(2))) && weights.pinned(*run(1)) == nullptr);
  EK_CHECK(weights.bytes_exchanged() == 2 * kPage);
  weights.begin(Pass::denoise, Pass::denoise);
  { const WeightStore::Use use(weights, *run(1)); }
  const std::optional<ek_status> status = status_of([&] { const WeightStore::Use use(weights, *run(3)); });
  EK_CHECK(status == EK_FILE_CHANGED || status == EK_CHECKSUM_MISMATCH);
  weights.idle();
  flip_byte(made, store.runs[3].offset + 5);
  EK_CHECK(pass_is_right(weights, store, made));
}

EK_TEST(pinned_runs_that_are_given_back_are_streamed) {
  const TemporaryFile made({2, 2, 1, 3, 2, 3});
  Store store(made, {0, 1, 2, 3, 4, 5}, 0);
  WeightStore weights = store.open();
  const auto run = [&](std::size_t place) { return &store.runs[place]; };
  EK_CHECK(pass_is_right(weights, store, made));
  EK_CHECK(weights.ring_statistics().bytes_read == 0);
  weights.unpin({run(5), run(3)}, 6 * kPage);
  EK_CHECK(weights.pinned(*run(5)) == nullptr && weights.pinned(*run(3)) == nullptr);
  for (int i = 0; i < 3; ++i) EK_CHECK(pass_is_right(weights, store, made));  // with the next pass read ahead
  const std::uint64_t read = weights.ring_statistics().bytes_read;
  EK_CHECK(read >= 18 * kPage);
  weights.unpin({run(0), run(1), run(2), run(4)}, 7 * kPage);  // with a larger ring
  EK_CHECK(weights.ring_statistics().bytes_read >= read);
  for (int i = 0; i < 3; ++i) EK_CHECK(pass_is_right(weights, store, made));
  weights.unpin({}, 7 * kPage);
  weights.unpin({run(0)}, 7 * kPage);  // not pinned any more
  EK_CHECK(pass_is_right(weights, store, made));
}

EK_TEST(an_exchanged_run_gives_the_memory_back_that_it_has) {
  const TemporaryFile made({2, 2, 2});
  Store store(made, {0, 1}, 4);
  WeightStore weights = store.open();
  const auto run = [&](std::size_t place) { return &store.runs[place]; };
  weights.exchange({{run(2), run(0)}});
  weights.unpin({run(2)}, 4 * kPage);
  EK_CHECK(weights.pinned(*run(2)) == nullptr && made.equal(1, weights.pinned(*run(1))));
  EK_CHECK(pass_is_right(weights, store, made));
}

EK_TEST(memory_that_is_discarded_goes_back_to_the_system) {
  constexpr std::size_t kSize = std::size_t{64} << 20;
  AlignedMemory memory(kSize);
  std::fill_n(memory.data(), kSize, std::uint8_t{7});
  const std::uint64_t before = process_resident_bytes();
  memory.discard(memory.data() + 1, kSize - 3 * kPage);
  const std::uint64_t after = process_resident_bytes();
  EK_CHECK(before == 0 || after + kSize - (std::size_t{4} << 20) < before);
  // What lies beside it stays, also on its pages.
  EK_CHECK(memory.data()[0] == 7 && memory.data()[kSize - 2 * kPage] == 7 && memory.data()[kSize - 1] == 7);
}

EK_TEST(a_pass_does_without_the_runs_that_it_skips) {
  const TemporaryFile made({1, 2, 1, 2, 1, 2, 1, 2});
  Store store(made, {2}, 4);
  WeightStore weights = store.open();
  for (int i = 0; i < 20; ++i) {
    weights.begin(Pass::denoise, Pass::denoise);
    { const WeightStore::Use use(weights, store.runs[0]); }
    const std::vector<const Run *> next = weights.next(3);
    EK_CHECK((next == std::vector<const Run *>{&store.runs[1], &store.runs[3], &store.runs[4]}));
    weights.skip({next[0], next[2]});
    for (const std::size_t place : {2, 3, 5, 6, 7}) {
      const WeightStore::Use use(weights, store.runs[place]);
      EK_CHECK(made.equal(place, use.data()));
    }
    if (i % 4 == 3) weights.idle();
  }
}
