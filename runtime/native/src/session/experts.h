// The experts of a session's layers: which of them a pass needs, how often they were needed, and what follows for the
// order in which they are read and for those that stay in memory.
//
// The residency plan decides how many are pinned, and spreads them evenly over the layers so that reading keeps pace
// with computing. Which ones of a layer is decided by use: one without rows need not be read, so a pinned one saves
// reading only in the passes that use it.
//
// Where the memory of a layer holds all that its passes of denoising want, as that of a model with a capacity for each
// block does, it holds what the last of them wanted: the first step on a block reads its experts into the places of those
// unused for longest, and the others find them there. Nothing of such a layer is read ahead.
#ifndef EDGEKIT_SESSION_EXPERTS_H
#define EDGEKIT_SESSION_EXPERTS_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "session/bundle.h"
#include "session/engine.h"
#include "session/weight_store.h"

namespace edgekit {

// How many experts passes of denoising wanted.
struct ExpertTotals {
  std::uint64_t layers = 0;  // with experts, each as often as a pass had it
  std::uint64_t wanted = 0;  // with rows, in all of them
  std::uint64_t again = 0;   // wanted by the same layer in the pass before, too
};

struct ExpertUse {
  std::uint64_t rows = 0;         // that were routed to it
  std::uint64_t passes = 0;       // in which it had rows
  std::uint64_t idle_passes = 0;  // in which it had none
  bool pinned = false;
};

class Experts {
 public:
  Experts(const Bundle &bundle, WeightStore &weights, const ResidencyPlan &plan);

  // Before the weights of a pass are scheduled. Whether what is scheduled already is that of another way to hold experts.
  bool begin(Pass pass);

  // Appends the runs of the experts of a chunk's layer in the order in which they are best read: those that most passes used come
  // first, so that those that a pass may do without have not been begun when its router tells. None of a layer whose
  // experts are brought.
  void append_runs(std::size_t chunk, Pass pass, std::vector<const Run *> &out) const;

  // Experts that are computed together. `passing`: their memory is given to others next, so that the work with it has
  // to end before this returns.
  using Use = std::function<void(const std::vector<LoadedExpertUnit> &, bool passing)>;

  // Counts the rows of the experts of a chunk's layer and hands those that have any to `use`: resident ones first, which compute
  // while the others are read, then of those all that have arrived, but no more than leave the ring room for what
  // comes next. Those without rows are not read if that has not begun.
  void each(std::size_t chunk, const std::vector<std::int64_t> &rows, const Use &use);

  // To be called where no pass is under way: when enough passes have been counted since the last time, experts that
  // more passes use take the places of pinned ones of their layer.
  void exchange();

  // The plan has changed: fewer of them are pinned.
  void follow(const ResidencyPlan &plan);

  // Throws std::out_of_range. A layer with experts is a chunk of its own.
  ExpertUse use(std::size_t chunk, std::size_t expert) const;
  const ExpertTotals &totals() const noexcept { return totals_; }

 private:
  struct Count {
    std::uint64_t rows = 0, passes = 0;
    std::uint64_t last = 0;  // pass of the layer in which it had rows, from 1 on
  };
  struct Layer {
    std::uint64_t passes = 0;
    std::vector<Count> counts;
    bool alike = true;   // their runs are of one length
    int fits = 0;        // above 0: what passes of denoising want is no more than has memory
    bool brings = false; // so it was when the pass under way was scheduled
  };

  std::vector<Exchange> exchanges() const;
  void count(Layer &own, const std::vector<const WeightUnit *> &experts, const std::vector<std::int64_t> &rows);
  void bring(Layer &own, const std::vector<const WeightUnit *> &experts, const std::vector<std::int64_t> &rows,
             const Use &use);

  const Bundle &bundle_;
  WeightStore &weights_;
  std::uint64_t batch_bytes_ = 0, most_exchanged_ = 0;
  std::vector<Layer> layers_;  // of the chunks
  std::unordered_map<const Run *, std::size_t> places_;  // of experts in their layers
  std::uint64_t exchanged_at_ = 0;                       // passes
  Pass pass_ = Pass::denoise;                            // under way
  ExpertTotals totals_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_EXPERTS_H
