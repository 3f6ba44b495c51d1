// A thread that opens packages, one after the other, while the session computes.
#ifndef EDGEKIT_PACKAGES_PACKAGE_OPENER_H
#define EDGEKIT_PACKAGES_PACKAGE_OPENER_H

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "packages/package_executor.h"

namespace edgekit {

class PackageOpener {
 public:
  // `open` is called on the thread, with the name of a package.
  using Open = std::function<std::unique_ptr<OpenPackage>(const std::string &name)>;
  explicit PackageOpener(Open open) : open_(std::move(open)) {}
  ~PackageOpener();
  PackageOpener(const PackageOpener &) = delete;
  PackageOpener &operator=(const PackageOpener &) = delete;

  void begin(const std::string &name);

  // Waits; gives the seconds that opening took. Throws what `open` has thrown; the package is not there then.
  double finish(const std::string &name);

  OpenPackage &opened(const std::string &name) { return *opened_.at(name); }
  void close(const std::string &name) { opened_.erase(name); }

  // Whether the caller is what opens packages, for which `finish` would wait for ever.
  bool here() const { return worker_ == std::this_thread::get_id(); }

 private:
  struct Opening {
    std::unique_ptr<OpenPackage> package;
    std::exception_ptr failed;
    double seconds = 0;
    bool done = false;
  };
  void work();

  const Open open_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> queue_;
  std::unordered_map<std::string, Opening> opening_;
  bool stop_ = false;
  std::unordered_map<std::string, std::unique_ptr<OpenPackage>> opened_;  // the caller's alone
  std::atomic<std::thread::id> worker_{std::thread::id()};
  std::thread thread_;
};

}  // namespace edgekit

#endif  // EDGEKIT_PACKAGES_PACKAGE_OPENER_H
