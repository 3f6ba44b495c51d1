// The residency plan of units by themselves, for tests in Python.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "abi_guard.h"
#include "edgekit.h"
#include "error.h"
#include "residency.h"
#include "session/memory.h"

using namespace edgekit;

struct EktUnit {
  const char *name, *group;
  uint64_t bytes;
  int64_t ring;
};

// pinned[i] becomes 1 or 0, *ahead_bytes the memory of both rings and *first_bytes that of the first. Errors are told by ek_last_error.
extern "C" EK_API ek_status ekt_plan_residency(const EktUnit *units, int64_t count, uint64_t budget_bytes,
                                               uint64_t least_ahead_bytes, uint64_t units_ahead, uint8_t *pinned,
                                               uint64_t *ahead_bytes, uint64_t *first_bytes) {
  return guarded([&] {
    std::vector<Unit> given;
    for (int64_t i = 0; i < count; ++i) {
      given.push_back({units[i].name, units[i].bytes, units[i].group, static_cast<int>(units[i].ring)});
    }
    BudgetTooSmall too_small;
    const ResidencyPlan plan = plan_residency(given, budget_bytes, least_ahead_bytes, units_ahead, too_small);
    if (too_small.needed != 0) {
      throw BudgetError("a budget of " + std::to_string(budget_bytes) + " bytes cannot stream these weights; " +
                            std::to_string(too_small.needed) + " bytes would be enough",
                        too_small.needed);
    }
    std::vector<Unit> streamed;
    for (std::size_t i = 0; i < given.size(); ++i) {
      pinned[i] = plan.pinned.count(given[i].name) != 0 ? 1 : 0;
      if (pinned[i] == 0) streamed.push_back(given[i]);
    }
    *ahead_bytes = plan.ring_bytes;
    *first_bytes = part_of_ring(streamed, plan.ring_bytes, units_ahead, 0);
  });
}
