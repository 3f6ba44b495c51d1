#include "bench/memory_log.h"

#include <algorithm>
#include <cstddef>

namespace edgekit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostPoints = 2000;

}  // namespace

void MemoryLog::begin() {
  end();
  points_.clear();
  points_.reserve(kMostPoints);
  peak_ = {};
  joules_.clear();
  for (const auto &meter : meters_) joules_.push_back(-meter->joules());
  kept_every_ = interval_;
  begun_ = Clock::now();
  kept_ = begun_ - kept_every_;
  look();
  stop_ = false;
  thread_ = std::thread([this] { watch(); });
}

void MemoryLog::end() noexcept {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  look();
  for (std::size_t i = 0; i < meters_.size(); ++i) {
    const double now = meters_[i]->joules();
    joules_[i] = now < 0 || joules_[i] > 0 ? -1 : now + joules_[i];
  }
}

void MemoryLog::watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!wake_.wait_for(lock, interval_, [this] { return stop_; })) {
    look();
    for (const auto &meter : meters_) meter->joules();
  }
}

void MemoryLog::look() noexcept try {
  const ProcessMemory now = process_memory();
  peak_.resident = std::max(peak_.resident, now.resident);
  peak_.anonymous = std::max(peak_.anonymous, now.anonymous);
  peak_.file = std::max(peak_.file, now.file);
  const Clock::time_point at = Clock::now();
  if (at - kept_ < kept_every_) return;
  if (points_.size() == kMostPoints) {
    // Every other one goes, and half as many come.
    for (std::size_t i = 1; i < kMostPoints / 2; ++i) points_[i] = points_[2 * i];
    points_.resize(kMostPoints / 2);
    kept_every_ *= 2;
  }
  points_.push_back({std::chrono::duration<double>(at - begun_).count(), now.anonymous, now.file});
  kept_ = at;
} catch (...) {
  // No memory is left for a look: the next one may have some.
}

}  // namespace edgekit
