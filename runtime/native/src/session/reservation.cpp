#include "session/reservation.h"

#include <algorithm>
#include <mutex>

#include "session/process.h"

namespace edgekit {
namespace {

struct Sessions {
  std::mutex mutex;
  std::uint64_t count = 0, bytes = 0;
  std::uint64_t before = 0;  // what the process held before the first of those that are open
};

Sessions &sessions() {
  static Sessions all;
  return all;
}

// The lock is held.
std::uint64_t held(const Sessions &all) {
  const std::uint64_t now = process_resident_bytes();
  return all.count == 0 || now == 0 ? now : std::max(now, all.before + all.bytes);
}

}  // namespace

Reservation::Reservation(const std::function<std::uint64_t(std::uint64_t process)> &plan) {
  Sessions &all = sessions();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const std::uint64_t process = held(all);
  bytes_ = plan(process);
  if (all.count++ == 0) all.before = process;
  all.bytes += bytes_;
}

Reservation::~Reservation() {
  Sessions &all = sessions();
  const std::lock_guard<std::mutex> lock(all.mutex);
  --all.count;
  all.bytes -= bytes_;
}

void Reservation::change(const std::function<std::uint64_t(std::uint64_t process)> &plan) {
  Sessions &all = sessions();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const std::uint64_t process = held(all), bytes = plan(process > bytes_ ? process - bytes_ : 0);
  all.bytes += bytes - bytes_;
  bytes_ = bytes;
}

void Reservation::give_back(std::uint64_t bytes) {
  Sessions &all = sessions();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const std::uint64_t given = std::min(bytes, bytes_);
  bytes_ -= given;
  all.bytes -= given;
}

void Reservation::take(std::uint64_t bytes) {
  Sessions &all = sessions();
  const std::lock_guard<std::mutex> lock(all.mutex);
  bytes_ += bytes;
  all.bytes += bytes;
}

std::uint64_t Reservation::process_bytes() {
  Sessions &all = sessions();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return held(all);
}

}  // namespace edgekit
