#include "session/engine_weights.h"

#include <map>
#include <vector>

#include "ring.h"

namespace edgekit {

std::unordered_set<std::string> keep_units(Bundle &bundle, Engine &engine, Borrower &borrower, const ResidencyPlan &plan) {
  std::map<const Run *, const WeightUnit *> units;  // in the order of the file
  for (const WeightUnit *unit : bundle.step_units()) {
    if (plan.kept.count(unit->name) != 0) units.emplace(unit->run, unit);
  }
  Ring ring(bundle.file(), static_cast<std::size_t>(plan.passing_bytes));
  const Loan lent(borrower, ring.memory(), ring.capacity());
  std::vector<const Run *> runs;
  for (const auto &[run, unit] : units) runs.push_back(run);
  ring.schedule(runs);
  std::unordered_set<std::string> kept;
  for (const auto &[run, unit] : units) {
    const std::uint8_t *data = ring.take(*run);
    if (!engine.keep({unit, data})) break;
    ring.release(data);
    kept.insert(unit->name);
  }
  return kept;
}

}  // namespace edgekit
