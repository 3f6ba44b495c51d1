// A thread that does one job after the other, each after a random delay: what a GPU's stream is to its program, for tests.
#ifndef EDGEKIT_TESTING_FAR_WORKER_H
#define EDGEKIT_TESTING_FAR_WORKER_H

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>

namespace edgekit_testing {

enum class Step { other, expert, join };

struct Job {
  Step step = Step::other;
  std::function<void()> run;
  std::uint64_t serial = 0;
};

// Once a job has failed those behind it are not run until the failure has been told.
class FarWorker {
 public:
  FarWorker(std::uint64_t seed, int most_microseconds);
  ~FarWorker();

  std::uint64_t add(Step step, std::function<void()> run);

  // Waits for the job of that number and those before it. The message where one of them failed that was not told yet.
  std::optional<std::string> wait(std::uint64_t serial);

  bool idle();  // nothing is left to do

  // For a job that is one of several parts: the first part is done, and here is the next job that is an expert or the
  // join. Throws std::runtime_error where another one comes, and where something has failed.
  void part_done();
  Job next_part();

 private:
  void work();
  Job take(std::unique_lock<std::mutex> &lock);
  void done(std::uint64_t serial);

  std::mt19937_64 random_;
  const int most_microseconds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::uint64_t added_ = 0, done_ = 0, running_ = 0;  // serials
  std::optional<std::string> failed_;
  std::uint64_t failed_at_ = 0;
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace edgekit_testing

#endif  // EDGEKIT_TESTING_FAR_WORKER_H
