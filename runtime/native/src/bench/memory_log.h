// Memory of the process over time, and meters that have to be asked often.
#ifndef EDGEKIT_BENCH_MEMORY_LOG_H
#define EDGEKIT_BENCH_MEMORY_LOG_H

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "bench/energy.h"
#include "session/process.h"

namespace edgekit {

struct MemoryPoint {
  double seconds = 0;  // since the log began
  std::uint64_t anonymous = 0, file = 0;
};

struct MemoryPeak {
  std::uint64_t resident = 0, anonymous = 0, file = 0;  // each at its own moment
};

// Looks at the process from a thread of its own, from begin() to end().
class MemoryLog {
 public:
  // `meters` are read as often as memory is; they must outlive the log.
  MemoryLog(std::chrono::milliseconds interval, std::vector<std::unique_ptr<EnergyMeter>> &meters)
      : interval_(interval), meters_(meters) {}
  ~MemoryLog() { end(); }
  MemoryLog(const MemoryLog &) = delete;
  MemoryLog &operator=(const MemoryLog &) = delete;

  void begin();  // throws std::system_error where there is no thread
  void end() noexcept;

  // Once it has ended.
  const std::vector<MemoryPoint> &points() const noexcept { return points_; }
  const MemoryPeak &peak() const noexcept { return peak_; }
  // By meter, of this time; negative: not known.
  const std::vector<double> &joules() const noexcept { return joules_; }

 private:
  void watch();
  void look() noexcept;

  const std::chrono::milliseconds interval_;
  std::vector<std::unique_ptr<EnergyMeter>> &meters_;
  std::vector<MemoryPoint> points_;
  std::chrono::milliseconds kept_every_{0};  // longer than the interval in long runs: there are only so many points
  std::chrono::steady_clock::time_point begun_, kept_;
  MemoryPeak peak_;
  std::vector<double> joules_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace edgekit

#endif  // EDGEKIT_BENCH_MEMORY_LOG_H
