// ek_plan_residency of edgekit.h.
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

ek_status ek_plan_residency(const ek_unit *units, int64_t count, uint64_t budget_bytes, uint64_t least_ahead_bytes,
                            uint64_t units_ahead, uint8_t *pinned, uint64_t *ahead_bytes) noexcept {
  return guarded([&] {
    if (count < 0 || (count > 0 && (units == nullptr || pinned == nullptr))) {
      fail(EK_INVALID_ARGUMENT, count, " units; give arrays of that length");
    }
    std::vector<Unit> given;
    for (int64_t i = 0; i < count; ++i) {
      if (units[i].name == nullptr || units[i].group == nullptr) {
        fail(EK_INVALID_ARGUMENT, "unit ", i, " has no name or no group");
      }
      given.push_back({units[i].name, units[i].bytes, units[i].group});
    }
    BudgetTooSmall too_small;
    const ResidencyPlan plan = plan_residency(given, budget_bytes, least_ahead_bytes, units_ahead, too_small);
    if (too_small.needed != 0) {
      throw BudgetError("a budget of " + std::to_string(budget_bytes) + " bytes cannot stream these weights; " +
                            std::to_string(too_small.needed) + " bytes would be enough",
                        too_small.needed);
    }
    for (std::size_t i = 0; i < given.size(); ++i) pinned[i] = plan.pinned.count(given[i].name) != 0 ? 1 : 0;
    if (ahead_bytes != nullptr) *ahead_bytes = plan.ring_bytes;
  });
}
