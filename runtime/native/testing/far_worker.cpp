#include "far_worker.h"

#include <chrono>
#include <exception>
#include <stdexcept>
#include <utility>

namespace edgekit_testing {

FarWorker::FarWorker(std::uint64_t seed, int most_microseconds)
    : random_(seed), most_microseconds_(most_microseconds), thread_([this] { work(); }) {}

FarWorker::~FarWorker() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stops_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::uint64_t FarWorker::add(Step step, std::function<void()> run) {
  const std::lock_guard<std::mutex> lock(mutex_);
  jobs_.push_back({step, std::move(run), ++added_});
  changed_.notify_all();
  return added_;
}

std::optional<std::string> FarWorker::wait(std::uint64_t serial) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= serial; });
  if (!failed_ || failed_at_ > serial) return std::nullopt;
  return std::exchange(failed_, std::nullopt);
}

bool FarWorker::idle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_ == added_;
}

void FarWorker::done(std::uint64_t serial) {
  done_ = serial;
  changed_.notify_all();
}

// A job without anything to run: the end.
Job FarWorker::take(std::unique_lock<std::mutex> &lock) {
  changed_.wait(lock, [this] { return stops_ || !jobs_.empty(); });
  if (jobs_.empty()) return {};
  Job job = std::move(jobs_.front());
  jobs_.pop_front();
  running_ = job.serial;
  const auto delay = most_microseconds_ == 0 ? 0 : random_() % static_cast<std::uint64_t>(most_microseconds_);
  lock.unlock();
  std::this_thread::sleep_for(std::chrono::microseconds(delay));
  lock.lock();
  return job;
}

void FarWorker::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (Job job = take(lock); job.run; job = take(lock)) {
    const bool skipped = failed_.has_value();
    lock.unlock();
    std::string error;
    try {
      if (!skipped) job.run();
    } catch (const std::exception &thrown) {
      error = thrown.what();
    }
    lock.lock();
    if (!error.empty() && !failed_) {
      failed_ = error;
      failed_at_ = running_;
    }
    done(running_);
  }
}

void FarWorker::part_done() {
  const std::lock_guard<std::mutex> lock(mutex_);
  done(running_);
}

Job FarWorker::next_part() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return stops_ || !jobs_.empty(); });
  if (jobs_.empty() || jobs_.front().step == Step::other) {
    // Its pass has failed elsewhere: nobody waits for this layer any more, and its failure is none.
    throw std::runtime_error("");
  }
  return take(lock);
}

}  // namespace edgekit_testing
