// An arena that is filled, round and round, with runs ahead of the computation that uses them.
#ifndef EDGEKIT_RING_H
#define EDGEKIT_RING_H

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flash_file.h"

namespace edgekit {

struct RingStatistics {
  std::uint64_t bytes_read = 0;
  std::uint64_t runs_read = 0;
  std::uint64_t bytes_skipped = 0;  // of runs that were skipped before they were whole
  double read_seconds = 0;  // at least one read was under way
  double wait_seconds = 0;  // take() waited
  std::uint64_t fallbacks = 0;  // reads of the file, since the ring was made, that left the fast path
};

// The schedule is a queue of runs; as long as there is room for the next one its read starts, on the threads of the
// file, which must outlive the ring. One consumer thread; cancel() and statistics() may come from any.
class Ring {
 public:
  // `bytes` is rounded down to a multiple of kRunAlignment. Throws Error (EK_INVALID_ARGUMENT, EK_OUT_OF_MEMORY).
  Ring(FlashFile &file, std::size_t bytes);
  ~Ring();  // cancels and waits

  std::size_t capacity() const noexcept;
  const std::uint8_t *memory() const noexcept;  // `capacity` bytes
  RingStatistics statistics() const;

  // Appends to the queue, all or nothing; a run may be scheduled many times. Throws Error: EK_BUDGET_EXCEEDED when a
  // run is larger than the ring, EK_INVALID_ARGUMENT when it is not one of the file's.
  void schedule(const std::vector<const Run *> &runs);

  // Waits for the next scheduled run, which must be `run`; its bytes stay valid until release(). Throws the error of
  // its read (the run then leaves the schedule, the ones after it stay), EK_INTERNAL when another run is next or when
  // only a release() could make room, and EK_STOPPED when the schedule was dropped meanwhile.
  const std::uint8_t *take(const Run &run);

  // Whether the next scheduled run is `run` and take() would not wait for it: it is in memory, or its read failed.
  bool ready(const Run &run) const;

  // The next `count` scheduled runs, or as many as there are.
  std::vector<const Run *> next(std::size_t count) const;

  // Takes the next occurrence of each of these runs, given in the order of the schedule, out of it: they will not be
  // taken, and what has not begun to be read will not be. Throws Error (EK_INTERNAL), with nothing changed, when they
  // are not scheduled in that order.
  void skip(const std::vector<const Run *> &runs);

  // Gives the memory of a taken run back; in any order. Throws Error (EK_INTERNAL) when it is not taken.
  void release(const std::uint8_t *data);

  // Drops what is scheduled and not taken; returns when nothing is written any more, not even for runs skipped before.
  void cancel();

  // For tests: what contradicts itself in the bookkeeping, or nothing.
  std::string inconsistency() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// For tests: fills the memory of runs with 0xFF when they are released, so that whoever still reads it computes nonsense.
void poison_released_runs(bool on);

}  // namespace edgekit

#endif  // EDGEKIT_RING_H
