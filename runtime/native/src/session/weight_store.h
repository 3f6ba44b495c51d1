// Weights of a session: runs that the engine keeps itself, pinned runs, and runs that stream through the read-ahead ring.
#ifndef EDGEKIT_SESSION_WEIGHT_STORE_H
#define EDGEKIT_SESSION_WEIGHT_STORE_H

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "flash_file.h"
#include "residency.h"
#include "ring.h"

namespace edgekit {

enum class Pass { denoise, prefill, head };

// A streamed run and the pinned one of the same length whose memory it is to have.
struct Exchange {
  const Run *in = nullptr, *out = nullptr;
};

// Who is told of the memory in which weights lie, while they do.
class Borrower {
 public:
  virtual ~Borrower() = default;
  virtual void lend(const std::uint8_t *memory, std::uint64_t bytes) = 0;  // throws Error
  virtual void take_back(const std::uint8_t *memory, std::uint64_t bytes) noexcept = 0;
};

// Memory that is lent as long as it lives.
class Loan {
 public:
  Loan(Borrower &borrower, const std::uint8_t *memory, std::uint64_t bytes);  // throws Error
  ~Loan();
  Loan(const Loan &) = delete;
  Loan &operator=(const Loan &) = delete;

 private:
  Borrower &borrower_;
  const std::uint8_t *const memory_;
  const std::uint64_t bytes_;
};

struct Arrivals;

// A pass over the model is a sequence of runs fixed in advance; the streamed ones among them are read ahead while
// others compute, and reading goes on into the pass that is expected next.
class WeightStore {
 public:
  // `runs_of` gives the runs that a pass uses, in the order in which it will use the streamed ones; it is asked when
  // their reading is scheduled. Reads the pinned runs. Throws Error.
  using RunsOf = std::function<std::vector<const Run *>(Pass)>;
  // `borrower` may be null; it must outlive the store otherwise.
  WeightStore(FlashFile &file, const ResidencyPlan &plan, RunsOf runs_of, Borrower *borrower = nullptr);

  // Starts a pass; `then` is the one that most likely follows.
  void begin(Pass pass, Pass then);

  // Stops reading ahead: nothing is expected to follow.
  void idle();

  // The streamed runs that come next in the pass under way.
  std::vector<const Run *> next(std::size_t count) const;

  // Some of these, in order, that the pass will not use after all: they are not read if that has not begun.
  void skip(const std::vector<const Run *> &runs);

  // Puts streamed runs in the place of pinned ones, between passes; what is read ahead is dropped. A run that cannot be
  // read goes on being streamed, so that its use shows the error, and the one that it was to replace stays.
  void exchange(const std::vector<Exchange> &wanted);

  // In the middle of a pass, where what is scheduled has neither of the two: begins to read a run into the memory of a
  // pinned one of its length, which nobody uses and which is streamed from now on. Throws Error, with nothing changed.
  void bring(const Exchange &wanted);

  // The runs that bring() has read: pinned from now on, in that order; waits for one at least, of those begun. Throws the
  // error of a read, when none is under way any more; its memory is nobody's then.
  std::vector<const Run *> brought();

  // Gives the memory of pinned runs back, between passes: they are streamed from now on, through a ring of `ring_bytes`.
  // Throws Error, with nothing changed.
  void unpin(const std::vector<const Run *> &runs, std::uint64_t ring_bytes);

  // Memory of a pinned run, null for others.
  const std::uint8_t *pinned(const Run &run) const { return pinned_[place(run)]; }

  // Whether the engine keeps a run, which is then used without data; what is looked up in it may be pinned as well.
  bool kept(const Run &run) const { return kept_[place(run)]; }

  // Whether a run is not streamed.
  bool stays(const Run &run) const { return kept(run) || pinned(run) != nullptr; }

  // Whether a streamed run, which must be the next in the order of the pass, has been read already.
  bool ready(const Run &run) const { return ring_ && ring_->ready(run); }

  // A run in memory for as long as this object lives. Streamed runs must be used in the order of the pass.
  class Use {
   public:
    Use(WeightStore &store, const Run &run);
    ~Use();
    Use(const Use &) = delete;
    Use &operator=(const Use &) = delete;
    // Null for a run that the engine keeps.
    const std::uint8_t *data() const noexcept { return data_; }

    bool stays() const noexcept { return !taken_; }

   private:
    WeightStore &store_;
    const std::uint8_t *data_;
    bool taken_;
  };

  // Waiting is that of passes.
  RingStatistics ring_statistics() const;  // what bring() read is among it
  std::uint64_t bytes_exchanged() const noexcept { return bytes_exchanged_; }

  ~WeightStore();

 private:
  // Of bring().
  struct Arrival;
  void all_arrived();

  std::size_t place(const Run &run) const { return static_cast<std::size_t>(&run - file_.layout().runs.data()); }
  void load_pinned(const ResidencyPlan &plan);
  void lend_ring();
  void lend_pinned();
  void schedule(Pass pass);

  FlashFile &file_;
  const RunsOf runs_of_;
  Borrower *const borrower_;
  AlignedMemory memory_;                // all pinned runs, one behind the other
  std::vector<std::uint8_t *> pinned_;  // per run of the file
  std::vector<bool> kept_;              // too
  std::unique_ptr<Ring> ring_;          // null: nothing is streamed
  std::vector<std::unique_ptr<Loan>> pinned_lent_;
  std::unique_ptr<Loan> ring_lent_;  // these end before the memory
  RingStatistics earlier_;              // of the rings before
  std::optional<Pass> expected_;  // scheduled already, after the pass under way
  bool changed_ = false;          // since then runs of a prefill have changed places
  std::deque<std::shared_ptr<Arrival>> arrivals_;
  std::shared_ptr<Arrivals> arriving_;
  std::uint64_t bytes_exchanged_ = 0;
  double exchange_wait_seconds_ = 0;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_WEIGHT_STORE_H
