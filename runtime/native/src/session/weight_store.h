// Weights of a session: pinned runs, and runs that stream through the read-ahead ring (see runtime/weights.py).
#ifndef EDGEKIT_SESSION_WEIGHT_STORE_H
#define EDGEKIT_SESSION_WEIGHT_STORE_H

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "flash_file.h"
#include "residency.h"
#include "ring.h"

namespace edgekit {

enum class Pass { denoise, prefill, head };
constexpr std::size_t kPasses = 3;

// A pass over the model is a sequence of runs fixed in advance; the streamed ones among them are read ahead while
// others compute, and reading goes on into the pass that is expected next.
class WeightStore {
 public:
  // `passes[p]`: the runs that pass p uses, in order. Reads the pinned runs. Throws Error.
  WeightStore(FlashFile &file, const ResidencyPlan &plan, const std::vector<const Run *> (&passes)[kPasses]);

  // Starts a pass; `then` is the one that most likely follows.
  void begin(Pass pass, Pass then);

  // Stops reading ahead: nothing is expected to follow.
  void idle();

  // Memory of a pinned run, null for a streamed one.
  const std::uint8_t *pinned(const Run &run) const { return pinned_[place(run)]; }

  // Whether a streamed run, which must be the next in the order of the pass, has been read already.
  bool ready(const Run &run) const { return ring_ && ring_->ready(run); }

  // A run in memory for as long as this object lives. Streamed runs must be used in the order of the pass.
  class Use {
   public:
    Use(WeightStore &store, const Run &run);
    ~Use();
    Use(const Use &) = delete;
    Use &operator=(const Use &) = delete;
    const std::uint8_t *data() const noexcept { return data_; }

   private:
    WeightStore &store_;
    const std::uint8_t *data_;
    bool taken_;
  };

  RingStatistics ring_statistics() const { return ring_ ? ring_->statistics() : RingStatistics{}; }

 private:
  std::size_t place(const Run &run) const { return static_cast<std::size_t>(&run - file_.layout().runs.data()); }
  void load_pinned(const ResidencyPlan &plan);

  FlashFile &file_;
  AlignedMemory memory_;                      // all pinned runs, one behind the other
  std::vector<const std::uint8_t *> pinned_;  // per run of the file
  std::vector<const Run *> streamed_[kPasses];
  std::optional<Ring> ring_;
  std::optional<Pass> expected_;  // scheduled already, after the pass under way
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_WEIGHT_STORE_H
