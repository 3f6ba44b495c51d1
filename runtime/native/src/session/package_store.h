// Weights that lie in packages, which the engine opens and closes: some stay open, the others are opened ahead of their
// use and closed behind it.
#ifndef EDGEKIT_SESSION_PACKAGE_STORE_H
#define EDGEKIT_SESSION_PACKAGE_STORE_H

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "session/engine.h"
#include "session/weight_store.h"

namespace edgekit {

// The engine's own threads open; this class has none and calls the engine on the thread that calls it. Packages that are
// open or being opened, but for the pinned ones, stay within `ahead_bytes`; one may always be.
class PackageStore {
 public:
  // `units_of` gives the packages that a pass uses, in order. Opens those that stay open. Throws Error.
  using UnitsOf = std::function<std::vector<const WeightUnit *>(Pass)>;
  PackageStore(Engine &engine, const std::unordered_set<std::string> &pinned, std::uint64_t ahead_bytes, UnitsOf units_of);
  ~PackageStore();
  PackageStore(const PackageStore &) = delete;
  PackageStore &operator=(const PackageStore &) = delete;

  // Starts a pass; `then` is the one that most likely follows. Throws Error.
  void begin(Pass pass, Pass then);

  // Whether a package is open, or being opened where there was room for it. Throws Error.
  bool begun(const WeightUnit &unit);

  // Closes what was opened ahead: nothing is expected to follow.
  void idle() noexcept;

  // Closes some that stay open, between passes: they are opened ahead from now on, within `ahead_bytes` together with the
  // others.
  void unpin(const std::unordered_set<std::string> &names, std::uint64_t ahead_bytes) noexcept;

  // A package open for as long as this object lives. Those that do not stay open must be used in the order of the pass.
  class Use {
   public:
    Use(PackageStore &store, const WeightUnit &unit);
    ~Use();
    Use(const Use &) = delete;
    Use &operator=(const Use &) = delete;

    bool stays() const noexcept { return !taken_; }

   private:
    PackageStore &store_;
    const WeightUnit &unit_;
    bool taken_;
  };

  std::uint64_t bytes_opened() const noexcept { return bytes_opened_; }  // during passes
  double open_seconds() const noexcept { return open_seconds_; }
  double wait_seconds() const noexcept { return wait_seconds_; }

 private:
  void schedule(Pass pass);
  void pump();
  void gone(const WeightUnit &unit) noexcept;
  void take(const WeightUnit &unit);

  Engine &engine_;
  std::uint64_t budget_;
  const UnitsOf units_of_;
  std::unordered_set<const WeightUnit *> pinned_;
  std::deque<const WeightUnit *> queued_, opening_;  // in the order of the passes
  std::unordered_set<const WeightUnit *> open_;      // of those: being opened, open ahead, or taken
  std::uint64_t held_ = 0;                           // their bytes
  std::optional<Pass> expected_;                     // scheduled already, after the pass under way
  std::uint64_t bytes_opened_ = 0;
  double open_seconds_ = 0, wait_seconds_ = 0;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_PACKAGE_STORE_H
