#include "bench/probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <vector>

#include "bench/kernel_rates.h"
#include "bench/peak.h"
#include "error.h"
#include "flash_file.h"
#include "thread_pool.h"

namespace edgekit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLeastSeconds = 0.01, kMostSeconds = 600;
constexpr int kRepeats = 3;  // the best of them: whatever else runs takes away, and gives nothing
std::atomic<std::uint64_t> seen{0};  // what nobody looks at would not be read


double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void check_seconds(double seconds) {
  if (seconds >= kLeastSeconds && seconds <= kMostSeconds) return;
  fail(EK_INVALID_ARGUMENT, "a probe of ", seconds, " seconds; give ", kLeastSeconds, "..", kMostSeconds);
}

// Operations per second of a loop on all threads at once, in about `seconds`.
double rate(ThreadPool &pool, const PeakLoop &loop, double seconds) {
  std::vector<float> kept(static_cast<std::size_t>(pool.size()));
  std::vector<double> done(kept.size());
  const auto run = [&](std::int64_t rounds) {
    const Clock::time_point started = Clock::now();
    pool.run(pool.size(), [&](std::int64_t task, int) {
      done[static_cast<std::size_t>(task)] = loop.run(rounds, &kept[static_cast<std::size_t>(task)]);
    });
    return seconds_since(started);
  };
  std::int64_t rounds = 1000;
  double taken = run(rounds);
  for (; taken < seconds / (4 * kRepeats); taken = run(rounds)) rounds *= 2;
  rounds = std::max<std::int64_t>(1, std::llround(static_cast<double>(rounds) * seconds / kRepeats / taken));
  double best = 0;
  for (int i = 0; i < kRepeats; ++i) {
    taken = run(rounds);
    double operations = 0;
    for (const double each : done) operations += each;
    best = std::max(best, operations / taken);
  }
  return best;
}

// Bytes per second that the threads read together, each a part of its own.
double memory_rate(ThreadPool &pool, const AlignedMemory &memory, double seconds) {
  const std::size_t words = memory.size() / sizeof(std::uint64_t) / static_cast<std::size_t>(pool.size());
  std::vector<std::uint64_t> kept(static_cast<std::size_t>(pool.size()));
  double best = 0;
  const Clock::time_point started = Clock::now();
  do {
    const Clock::time_point begun = Clock::now();
    pool.run(pool.size(), [&](std::int64_t task, int) {
      const auto *from = reinterpret_cast<const std::uint64_t *>(memory.data()) + words * static_cast<std::size_t>(task);
      std::uint64_t sums[8] = {};
      for (std::size_t i = 0; i + 8 <= words; i += 8) {
        for (std::size_t k = 0; k < 8; ++k) sums[k] ^= from[i + k];
      }
      for (const std::uint64_t sum : sums) kept[static_cast<std::size_t>(task)] ^= sum;
    });
    const double bytes = static_cast<double>(words * sizeof(std::uint64_t)) * pool.size();
    best = std::max(best, bytes / seconds_since(begun));
    for (const std::uint64_t sum : kept) seen.store(sum, std::memory_order_relaxed);
  } while (seconds_since(started) < seconds);
  return best;
}

}  // namespace

ProcessorProbe probe_processor(int threads, double seconds) {
  check_seconds(seconds);
  ThreadPool pool(threads);
  ProcessorProbe out;
  out.threads = threads;
  const PeakLoop int8 = int8_loops().front(), floats = float_loops().front();
  out.int8_instructions = int8.instructions;
  out.float_instructions = floats.instructions;
  out.int8_operations = rate(pool, int8, seconds);
  out.float_operations = rate(pool, floats, seconds);
  const AlignedMemory memory = large_memory();
  out.memory_bytes = memory_rate(pool, memory, seconds);
  out.product_operations = product_rate(pool, memory, kManyRows, seconds);
  out.few_row_operations = product_rate(pool, memory, kFewRows, seconds);
  out.attention_operations = attention_rate(pool, seconds);
  return out;
}

}  // namespace edgekit
