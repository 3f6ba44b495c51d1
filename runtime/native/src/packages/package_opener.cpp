#include "packages/package_opener.h"

#include <chrono>
#include <utility>

namespace edgekit {

PackageOpener::~PackageOpener() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void PackageOpener::begin(const std::string &name) {
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  {
    std::lock_guard<std::mutex> lock(mutex_);
    opening_[name] = {};
    queue_.push_back(name);
  }
  changed_.notify_all();
}

double PackageOpener::finish(const std::string &name) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return opening_.at(name).done; });
  Opening own = std::move(opening_.at(name));
  opening_.erase(name);
  lock.unlock();
  if (own.failed) std::rethrow_exception(own.failed);
  opened_[name] = std::move(own.package);
  return own.seconds;
}

void PackageOpener::work() {
  using Clock = std::chrono::steady_clock;
  worker_ = std::this_thread::get_id();
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    const std::string name = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    Opening made;
    const Clock::time_point started = Clock::now();
    try {
      made.package = open_(name);
    } catch (...) {
      made.failed = std::current_exception();
    }
    made.seconds = std::chrono::duration<double>(Clock::now() - started).count();
    made.done = true;
    lock.lock();
    opening_[name] = std::move(made);
    changed_.notify_all();
  }
}

}  // namespace edgekit
