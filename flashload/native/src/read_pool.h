// Threads that take jobs from one list, first in, first out.
#ifndef EDGEKIT_READ_POOL_H
#define EDGEKIT_READ_POOL_H

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "error.h"

namespace edgekit {

template <typename Job>
class JobThreads {
 public:
  // `work` is called for one job at a time on each thread and must not throw. Throws Error (EK_OUT_OF_MEMORY).
  JobThreads(int threads, std::function<void(Job &)> work) : work_(std::move(work)) {
    try {
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error &) {
      stop();
      fail(EK_OUT_OF_MEMORY, "the system refuses to start ", threads,
           " reader threads; use fewer, or raise the limits of memory and threads");
    }
  }

  // Does what is left, then returns.
  ~JobThreads() { stop(); }

  JobThreads(const JobThreads &) = delete;
  JobThreads &operator=(const JobThreads &) = delete;

  void push(std::vector<Job> jobs) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const std::size_t before = jobs_.size();
      try {
        for (Job &job : jobs) jobs_.push_back(std::move(job));
      } catch (...) {
        jobs_.resize(before);
        throw;
      }
    }
    jobs.size() == 1 ? wake_.notify_one() : wake_.notify_all();
  }

 private:
  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      work_(job);
      job = Job();  // whatever it holds is let go before this thread waits for the lock
      lock.lock();
    }
  }

  void stop() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread &thread : threads_) thread.join();
    threads_.clear();
  }

  const std::function<void(Job &)> work_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace edgekit

#endif  // EDGEKIT_READ_POOL_H
