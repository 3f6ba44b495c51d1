#include "session/weights_in_use.h"

#include <algorithm>

#include "error.h"

namespace edgekit {

WorkEnds::~WorkEnds() {
  try {
    wait();
  } catch (...) {
    // See above; nothing is in use all the same.
  }
}

void WorkEnds::wait() { engine_.wait(std::min(until_, engine_.submitted())); }

WeightsInUse::Used::Used(WeightsInUse &own, const WeightUnit &unit) : ends(own.engine_) {
  if (unit.run != nullptr) {
    loaded.emplace(own.weights_, *unit.run);
  } else {
    opened.emplace(*own.packages_, unit);
  }
  if (stays()) ends.until(0);
}

bool WeightsInUse::at_hand(const WeightUnit &unit) {
  if (unit.run == nullptr) return packages_->begun(unit);
  return weights_.stays(*unit.run) || weights_.ready(*unit.run);
}

void WeightsInUse::settle() {
  if (!behind_) return;
  const std::unique_ptr<Used> used = std::move(behind_);
  used->ends.wait();
}

void WeightsInUse::finish() {
  const std::unique_ptr<Used> used = std::move(behind_);
  engine_.wait(engine_.submitted());
}

}  // namespace edgekit
