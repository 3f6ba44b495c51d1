// Who looks on while a session runs.
#ifndef EDGEKIT_SESSION_OBSERVER_H
#define EDGEKIT_SESSION_OBSERVER_H

#include <chrono>
#include <cstdint>

#include "flash_file.h"
#include "session/weight_store.h"

namespace edgekit {

struct WeightUnit;

using Moment = std::chrono::steady_clock::time_point;

inline double seconds_between(Moment from, Moment to) { return std::chrono::duration<double>(to - from).count(); }

// A pass that did not fail. Engines that work late are waited for where the head has its scores, or where the pass ends:
// what comes before is then the time of handing out work.
struct PassTimes {
  Pass kind = Pass::denoise;
  Moment begun, headed, ended;  // headed: where the last norm and the vocabulary head began; else `ended`
  std::int64_t rows = 0;        // positions that it computed
  std::int64_t segments = 0;
  std::int64_t head_rows = 0;   // of them, and of the pass before where it has none, those that the head was asked for
  std::int64_t attended = 0;    // pairs of a row and one that it may see, in a layer without a window
  std::int64_t expert_rows = 0; // rows that experts computed, over all of them and all layers
};

// A unit of weights. Streamed experts of a layer are waited for within the layer's use.
struct UnitTimes {
  const WeightUnit *unit = nullptr;
  Moment asked, had, done;  // at hand from `had` on
  bool waits = false;       // it streams, so it may have been waited for
};

// Calls come on the thread of the session, but for those about reads.
class SessionObserver : public ReadObserver {
 public:
  virtual void passed(const PassTimes &pass) noexcept = 0;
  virtual void used(const UnitTimes &unit) noexcept = 0;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_OBSERVER_H
