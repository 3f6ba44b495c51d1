// A fixed set of threads that share out numbered tasks. The calling thread is one of them.
#ifndef EDGEKIT_THREAD_POOL_H
#define EDGEKIT_THREAD_POOL_H

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace edgekit {

class ThreadPool {
 public:
  // `threads` counts the calling thread; 1 starts no other. Throws Error (EK_INVALID_ARGUMENT) below 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool &) = delete;
  ThreadPool &operator=(const ThreadPool &) = delete;

  int size() const noexcept { return size_; }

  // Calls body(task, thread) once for every task in 0..count-1 and returns when all are done; thread is in
  // 0..size()-1. Tasks start in ascending order; which thread gets which is not determined, so what a task
  // computes must not depend on `thread` other than as the index of scratch memory. The first exception that a
  // task throws is thrown again here, after every running task has ended. Not reentrant, one caller at a time.
  template <typename Body>
  void run(std::int64_t count, Body &&body) {
    if (count <= 0) return;
    if (size_ == 1 || count == 1) {
      for (std::int64_t task = 0; task < count; ++task) body(task, 0);
      return;
    }
    auto call = [](void *context, std::int64_t task, int thread) {
      (*static_cast<std::remove_reference_t<Body> *>(context))(task, thread);
    };
    run_shared(count, call, const_cast<void *>(static_cast<const void *>(&body)));
  }

 private:
  using Call = void (*)(void *context, std::int64_t task, int thread);

  void run_shared(std::int64_t count, Call call, void *context);
  void work(int thread);
  void take_tasks(int thread);

  const int size_;
  std::vector<std::thread> threads_;

  // One round of tasks. A round begins when `round_` is raised; `call_`, `context_` and `count_` are written
  // before that and only read until `busy_` is 0 again.
  Call call_ = nullptr;
  void *context_ = nullptr;
  std::int64_t count_ = 0;
  std::atomic<std::int64_t> next_{0};
  std::atomic<int> busy_{0};
  std::atomic<std::uint64_t> round_{0};
  std::atomic<bool> stop_{false};

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::exception_ptr error_;
};

}  // namespace edgekit

#endif  // EDGEKIT_THREAD_POOL_H
