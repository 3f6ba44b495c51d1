// What the sessions of this process hold of its memory, so that several can share one budget.
#ifndef EDGEKIT_SESSION_RESERVATION_H
#define EDGEKIT_SESSION_RESERVATION_H

#include <cstdint>
#include <functional>

namespace edgekit {

// Counts what a session was planned to take from when it is made until it ends. Memory that a session has not written to
// yet takes none from the system: to the next session it counts all the same.
class Reservation {
 public:
  // Calls `plan` under a lock, so it must not call out: it is told the bytes that the process holds, those of other sessions
  // among them, and gives those that this session takes. Throws what it throws.
  explicit Reservation(const std::function<std::uint64_t(std::uint64_t process)> &plan);
  ~Reservation();
  Reservation(const Reservation &) = delete;
  Reservation &operator=(const Reservation &) = delete;

  // Plans again, as when it was made: `plan` is told the bytes that the process holds besides those of this session. Where it
  // throws nothing has changed.
  void change(const std::function<std::uint64_t(std::uint64_t process)> &plan);

  // Of those that the session was planned to take, some that it will not take again.
  void give_back(std::uint64_t bytes);

  // Some that it takes besides.
  void take(std::uint64_t bytes);

  // What a session that is planned now would be told.
  static std::uint64_t process_bytes();

 private:
  std::uint64_t bytes_ = 0;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_RESERVATION_H
