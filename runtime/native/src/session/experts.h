// The experts of a session's layers: which of them a pass needs, how often they were needed, and what follows for the
// order in which they are read and for those that stay in memory.
//
// The residency plan decides how many are pinned, and spreads them evenly over the layers so that reading keeps pace
// with computing. Which ones of a layer is decided by use: one without rows need not be read, so a pinned one saves
// reading only in the passes that use it.
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

struct ExpertUse {
  std::uint64_t rows = 0;         // that were routed to it
  std::uint64_t passes = 0;       // in which it had rows
  std::uint64_t idle_passes = 0;  // in which it had none
  bool pinned = false;
};

class Experts {
 public:
  Experts(const Bundle &bundle, WeightStore &weights, const ResidencyPlan &plan);

  // Appends the runs of the experts of a chunk's layer in the order in which they are best read: those that most passes used come
  // first, so that those that a pass may do without have not been begun when its router tells.
  void append_runs(std::size_t chunk, std::vector<const Run *> &out) const;

  // Counts the rows of the experts of a chunk's layer and hands those that have any to `use`: resident ones first, which compute
  // while the others are read, then of those all that have arrived, but no more than leave the ring room for what
  // comes next. Those without rows are not read if that has not begun.
  void each(std::size_t chunk, const std::vector<std::int64_t> &rows,
            const std::function<void(const std::vector<LoadedExpertUnit> &)> &use);

  // To be called where no pass is under way: when enough passes have been counted since the last time, experts that
  // more passes use take the places of pinned ones of their layer.
  void exchange();

  // The plan has changed: fewer of them are pinned.
  void follow(const ResidencyPlan &plan);

  // Throws std::out_of_range. A layer with experts is a chunk of its own.
  ExpertUse use(std::size_t chunk, std::size_t expert) const;

 private:
  struct Count {
    std::uint64_t rows = 0, passes = 0;
  };
  struct Layer {
    std::uint64_t passes = 0;
    std::vector<Count> counts;
  };

  std::vector<Exchange> exchanges() const;

  const Bundle &bundle_;
  WeightStore &weights_;
  std::uint64_t batch_bytes_ = 0, most_exchanged_ = 0;
  std::vector<Layer> layers_;  // of the chunks
  std::unordered_map<const Run *, std::size_t> places_;  // of experts in their layers
  std::uint64_t exchanged_at_ = 0;                       // passes
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_EXPERTS_H
