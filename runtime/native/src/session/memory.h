// What a memory budget has to hold besides weights, and the residency plan for what is left.
#ifndef EDGEKIT_SESSION_MEMORY_H
#define EDGEKIT_SESSION_MEMORY_H

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "error.h"
#include "residency.h"
#include "session/bundle.h"
#include "session/engine.h"
#include "session/kept_rows.h"
#include "session/session.h"

namespace edgekit {

// EK_BUDGET_EXCEEDED with the bytes that would be enough.
class BudgetError : public Error {
 public:
  BudgetError(const std::string &message, std::uint64_t needed) : Error(EK_BUDGET_EXCEEDED, message), needed_(needed) {}
  std::uint64_t needed() const noexcept { return needed_; }

 private:
  std::uint64_t needed_;
};

std::vector<KvGeometry> kv_geometry(const Model &model);

// Positions that come at once when a prefix is encoded.
std::int64_t prefill_chunk(const Model &model);

// Positions that a segment may keep at once.
std::int64_t kept_chunk(const Model &model, const SessionOptions &options);

// Bytes of keys and values that the sequences which the options ask for may keep together.
std::uint64_t kept_limit(const Model &model, const SessionOptions &options);

// What the options ask for.
EngineLengths lengths_of(const Model &model, const SessionOptions &options);

// For prefixes of up to options.positions and passes over up to options.canvas. `process` is not measured here.
MemoryNeeds memory_needs(const Bundle &bundle, const Engine &engine, const SessionOptions &options);

// What every step uses, in execution order, and behind it the tiles of an embedding that is only looked up, whose group is
// "embedding".
std::vector<Unit> weight_units(const Bundle &bundle);

// Of the engine's room for weights first, then of the memory of the process. `kept`: what the engine keeps already; null:
// nothing yet. Throws BudgetError.
ResidencyPlan plan_weights(const Bundle &bundle, const MemoryNeeds &needs, const SessionOptions &options,
                           const std::unordered_set<std::string> *kept = nullptr);

// The same with at most `pinned_bytes` pinned, the last of a step left out first: what stays is used before the rest has
// been read.
ResidencyPlan with_fewer_pins(const Bundle &bundle, const ResidencyPlan &plan, std::uint64_t pinned_bytes);

// The same with as many pinned as leave pinned weights and ring `room` bytes together, which has to hold a ring for all. The
// ring stays as it is for as long as that leaves room for pins.
ResidencyPlan within(const Bundle &bundle, const ResidencyPlan &plan, std::uint64_t room);

// The part of a plan's ring that what is read from the flash file goes through; the rest is for packages.
std::uint64_t flash_ring(const Bundle &bundle, const ResidencyPlan &plan);

// Throws BudgetError where what a session without a budget takes is more than `machine` bytes, the memory there is; 0:
// nobody knows.
void check_machine(const Bundle &bundle, const MemoryNeeds &needs, const ResidencyPlan &plan,
                   const SessionOptions &options, std::uint64_t machine);

// How many sequences of these lengths options.memory_bytes, or else the memory of the machine, has room for; 0: none, or
// nobody knows how much there is.
std::int64_t most_sequences(const Bundle &bundle, const Engine &engine, SessionOptions options, std::uint64_t process,
                            std::uint64_t machine);

// The least budget that `plan_weights` takes, whatever the options say about it.
std::uint64_t least_budget(const Bundle &bundle, const MemoryNeeds &needs, SessionOptions options);

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_MEMORY_H
