#include <atomic>
#include <cstdint>
#include <vector>

#include "error.h"
#include "thread_pool.h"
#include "unit.h"

using edgekit::ThreadPool;

EK_TEST(every_task_runs_once) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (std::int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
      std::atomic<bool> inside{true};
      pool.run(count, [&](std::int64_t task, int thread) {
        if (thread < 0 || thread >= threads) inside = false;
        ++seen[static_cast<std::size_t>(task)];
      });
      EK_CHECK(inside);
      for (auto &times : seen) EK_CHECK(times == 1);
    }
  }
}

EK_TEST(the_first_exception_arrives_and_the_pool_goes_on) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    bool caught = false;
    try {
      pool.run(100, [&](std::int64_t task, int) {
        if (task == 17) edgekit::fail(EK_INTERNAL, "task ", task);
      });
    } catch (const edgekit::Error &error) {
      caught = error.status() == EK_INTERNAL && std::string(error.what()) == "task 17";
    }
    EK_CHECK(caught);
    std::atomic<int> ran{0};
    pool.run(50, [&](std::int64_t, int) { ++ran; });
    EK_CHECK(ran == 50);
  }
}

EK_TEST(a_pool_without_threads_is_refused) {
  bool refused = false;
  try {
    ThreadPool pool(0);
  } catch (const edgekit::Error &error) {
    refused = error.status() == EK_INVALID_ARGUMENT;
  }
  EK_CHECK(refused);
}
