#include "session/package_store.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace edgekit {

PackageStore::PackageStore(Engine &engine, const std::unordered_set<std::string> &pinned, std::uint64_t ahead_bytes,
                           UnitsOf units_of)
    : engine_(engine), budget_(ahead_bytes), units_of_(std::move(units_of)) {
  std::deque<const WeightUnit *> under_way;
  try {
    for (const Pass pass : {Pass::denoise, Pass::prefill, Pass::head}) {
      for (const WeightUnit *unit : units_of_(pass)) {
        if (pinned.count(unit->name) == 0 || !pinned_.insert(unit).second) continue;
        engine_.open_begin(*unit);
        under_way.push_back(unit);
      }
    }
    while (!under_way.empty()) {
      const WeightUnit *unit = under_way.front();
      under_way.pop_front();
      pinned_.erase(unit);  // until it is open
      engine_.open_finish(*unit);
      pinned_.insert(unit);
    }
  } catch (...) {
    for (const WeightUnit *unit : under_way) {
      pinned_.erase(unit);
      try {
        engine_.open_finish(*unit);
        pinned_.insert(unit);
      } catch (const Error &) {  // what was wrong first is what matters
      }
    }
    for (const WeightUnit *unit : pinned_) engine_.close_unit(*unit);
    throw;
  }
}

PackageStore::~PackageStore() {
  idle();
  for (const WeightUnit *unit : pinned_) engine_.close_unit(*unit);
}

void PackageStore::begin(Pass pass, Pass then) {
  if (budget_ == 0) return;
  if (expected_ == pass) {
    expected_.reset();
  } else {
    idle();
    schedule(pass);
  }
  schedule(then);
  expected_ = then;
  pump();
}

void PackageStore::schedule(Pass pass) {
  for (const WeightUnit *unit : units_of_(pass)) {
    if (pinned_.count(unit) == 0) queued_.push_back(unit);
  }
}

void PackageStore::pump() {
  while (!queued_.empty() && (held_ == 0 || held_ + queued_.front()->bytes <= budget_)) {
    const WeightUnit *unit = queued_.front();
    if (open_.count(unit) != 0) return;  // by the pass under way: engines know packages by their names
    engine_.open_begin(*unit);
    queued_.pop_front();
    opening_.push_back(unit);
    open_.insert(unit);
    held_ += unit->bytes;
  }
}

bool PackageStore::begun(const WeightUnit &unit) {
  if (pinned_.count(&unit) != 0) return true;
  pump();
  return !opening_.empty() && opening_.front() == &unit;
}

void PackageStore::gone(const WeightUnit &unit) noexcept {
  held_ -= unit.bytes;
  open_.erase(&unit);
}

void PackageStore::take(const WeightUnit &unit) {
  pump();
  if (opening_.empty() || opening_.front() != &unit) {
    fail(EK_INTERNAL, "package ", unit.name, " is used where ",
         opening_.empty() ? std::string("nothing") : opening_.front()->name, " is scheduled; please report it");
  }
  opening_.pop_front();
  const auto started = std::chrono::steady_clock::now();
  const auto waited = [&] {
    wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  };
  try {
    open_seconds_ += engine_.open_finish(unit);
  } catch (...) {
    gone(unit);
    waited();
    throw;
  }
  bytes_opened_ += unit.bytes;
  waited();
}

void PackageStore::idle() noexcept {
  queued_.clear();
  expected_.reset();
  while (!opening_.empty()) {
    const WeightUnit *unit = opening_.front();
    opening_.pop_front();
    gone(*unit);
    try {
      open_seconds_ += engine_.open_finish(*unit);
    } catch (...) {
      continue;  // nobody wanted it
    }
    bytes_opened_ += unit->bytes;
    engine_.close_unit(*unit);
  }
}

void PackageStore::unpin(const std::unordered_set<std::string> &names, std::uint64_t ahead_bytes) noexcept {
  idle();
  budget_ = ahead_bytes;
  for (auto unit = pinned_.begin(); unit != pinned_.end();) {
    if (names.count((*unit)->name) == 0) {
      ++unit;
      continue;
    }
    engine_.close_unit(**unit);
    unit = pinned_.erase(unit);
  }
}

PackageStore::Use::Use(PackageStore &store, const WeightUnit &unit)
    : store_(store), unit_(unit), taken_(store.pinned_.count(&unit) == 0) {
  if (taken_) store.take(unit);
}

PackageStore::Use::~Use() {
  if (!taken_) return;
  store_.engine_.close_unit(unit_);
  store_.gone(unit_);
  try {
    store_.pump();
  } catch (...) {
    // What could not be begun stays queued, so that its own use tells.
  }
}

}  // namespace edgekit
