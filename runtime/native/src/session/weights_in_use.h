// Units of weights that calls of an engine use, also when these return before their work is done.
#ifndef EDGEKIT_SESSION_WEIGHTS_IN_USE_H
#define EDGEKIT_SESSION_WEIGHTS_IN_USE_H

#include <cstdint>
#include <memory>
#include <optional>

#include "session/engine.h"
#include "session/observer.h"
#include "session/package_store.h"
#include "session/weight_store.h"

namespace edgekit {

// Waits before it is destroyed: what is declared before it is in use by what is submitted meanwhile. Where nobody has waited
// already another failure leads here, which is the one to tell.
class WorkEnds {
 public:
  explicit WorkEnds(Engine &engine) : engine_(engine) {}
  ~WorkEnds();
  WorkEnds(const WorkEnds &) = delete;
  WorkEnds &operator=(const WorkEnds &) = delete;

  void until(std::uint64_t submitted) { until_ = submitted; }  // later calls do not matter
  void wait();                                                 // throws Error

 private:
  Engine &engine_;
  std::uint64_t until_ = UINT64_MAX;
};

// A streamed unit that a call is still at work with stays in use while the next one is brought and submitted, so that the
// engine always has something to do. It is one at most, and given back before where the next one has not come yet: it might
// wait for the very memory, and has nothing to submit meanwhile.
class WeightsInUse {
 public:
  // `packages` may still be null.
  WeightsInUse(Engine &engine, WeightStore &weights, const std::unique_ptr<PackageStore> &packages)
      : engine_(engine), weights_(weights), packages_(packages) {}

  // Has a unit in memory while `body` uses it, and what it submits. Throws Error, also of the unit before.
  template <typename Body>
  void with(const WeightUnit &unit, Body &&body) {
    if (behind_ && !at_hand(unit)) settle();
    const std::uint64_t before = engine_.submitted();
    UnitTimes times{&unit, now(), {}, {}, false};
    auto used = std::make_unique<Used>(*this, unit);
    times.had = now();
    times.waits = !used->stays();
    body(LoadedUnit{&unit, used->data()});
    const std::uint64_t after = engine_.submitted();
    settle();
    times.done = now();
    if (observer_ != nullptr) observer_->used(times);
    if (after == before || used->stays()) return;
    used->ends.until(after);
    behind_ = std::move(used);
  }

  // Waits for the calls of the unit before, and gives it back. Throws Error.
  void settle();

  // Waits until nothing is under way. Throws Error; nothing is in use then either.
  void finish();

  // Tells `observer`, which may be null, of every unit from the next one on.
  void observe(SessionObserver *observer) noexcept { observer_ = observer; }

 private:
  struct Used {
    Used(WeightsInUse &own, const WeightUnit &unit);

    const std::uint8_t *data() const { return loaded ? loaded->data() : nullptr; }
    bool stays() const { return loaded ? loaded->stays() : opened->stays(); }

    std::optional<WeightStore::Use> loaded;
    std::optional<PackageStore::Use> opened;
    WorkEnds ends;
  };

  bool at_hand(const WeightUnit &unit);
  Moment now() const { return observer_ == nullptr ? Moment() : std::chrono::steady_clock::now(); }

  SessionObserver *observer_ = nullptr;
  Engine &engine_;
  WeightStore &weights_;
  const std::unique_ptr<PackageStore> &packages_;
  std::unique_ptr<Used> behind_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_WEIGHTS_IN_USE_H
