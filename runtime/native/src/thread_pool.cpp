#include "thread_pool.h"

#include "error.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace edgekit {
namespace {

// A round of kernels follows the last one within microseconds; a sleeping thread needs tens of them to wake up.
constexpr int kSpins = 4000;

void pause() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) : size_(threads) {
  if (threads < 1) fail(EK_INVALID_ARGUMENT, "a thread pool needs at least 1 thread, not ", threads);
  try {
    for (int i = 1; i < threads; ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (...) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread &thread : threads_) thread.join();
    fail(EK_OUT_OF_MEMORY, "the system refuses to start ", threads,
         " threads; use fewer, or raise the limits of memory and threads");
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread &thread : threads_) thread.join();
}

void ThreadPool::take_tasks(int thread) {
  for (;;) {
    const std::int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
    if (task >= count_) return;
    try {
      call_(context_, task, thread);
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!error_) error_ = std::current_exception();
      next_.store(count_, std::memory_order_relaxed);  // nothing else starts
    }
  }
}

void ThreadPool::run_shared(std::int64_t count, Call call, void *context) {
  call_ = call;
  context_ = context;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(size_ - 1, std::memory_order_relaxed);
  {
    // Under the lock, so that a thread which is about to sleep cannot miss it.
    std::lock_guard<std::mutex> lock(mutex_);
    round_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  take_tasks(0);
  for (int spin = 0; busy_.load(std::memory_order_acquire) != 0 && spin < kSpins; ++spin) pause();
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [this] { return busy_.load(std::memory_order_acquire) == 0; });
  if (error_) {
    std::exception_ptr error = std::move(error_);
    error_ = nullptr;
    std::rethrow_exception(error);
  }
}

void ThreadPool::work(int thread) {
  std::uint64_t seen = 0;
  for (;;) {
    for (int spin = 0; round_.load(std::memory_order_acquire) == seen && !stop_ && spin < kSpins; ++spin) pause();
    if (round_.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || round_.load(std::memory_order_acquire) != seen; });
    }
    if (stop_) return;
    seen = round_.load(std::memory_order_acquire);
    take_tasks(thread);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      std::lock_guard<std::mutex> lock(mutex_);
      done_.notify_one();
    }
  }
}

}  // namespace edgekit
