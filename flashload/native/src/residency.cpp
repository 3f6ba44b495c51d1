#include "residency.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <numeric>

#include "error.h"

namespace edgekit {
namespace {

// The groups that are pinned before the others, in this order, and behind them.
constexpr const char *kFirst[] = {"dense small", "expert"}, *kLast = "sparse expert";
constexpr std::uint64_t kMaxBytes = (std::uint64_t{1} << 63) - 1;

// What matters of a unit for reading ahead.
struct Streamed {
  std::uint64_t bytes = 0;
  int ring = 0;
};
using Sizes = std::vector<Streamed>;

// Units of equal group and size, as indices, in execution order.
struct PinKind {
  std::uint64_t bytes = 0;
  std::size_t first = 0;  // position of the first one within its group
  std::vector<std::size_t> units;
};

std::ptrdiff_t rank_of(const std::string &group) {
  const auto others = std::end(kFirst) - std::begin(kFirst);
  return group == kLast ? others + 1 : std::find(std::begin(kFirst), std::end(kFirst), group) - std::begin(kFirst);
}

std::uint64_t checked_total(const std::vector<Unit> &units, std::uint64_t ring_units) {
  if (ring_units < 1) fail(EK_INVALID_ARGUMENT, "the ring must hold at least one unit, not ", ring_units);
  std::unordered_set<std::string> names;
  std::uint64_t total = 0;
  for (const Unit &unit : units) {
    if (unit.bytes == 0) fail(EK_INVALID_ARGUMENT, "unit ", unit.name, ": 0 bytes; a unit must have some");
    if (!names.insert(unit.name).second) fail(EK_INVALID_ARGUMENT, "unit ", unit.name, ": listed twice");
    if (unit.bytes > kMaxBytes - total) fail(EK_INVALID_ARGUMENT, "unit ", unit.name, ": more than 2^63-1 bytes");
    total += unit.bytes;
  }
  return total;
}

Sizes largest_first_of(const std::vector<Unit> &units) {
  Sizes sizes;
  for (const Unit &unit : units) sizes.push_back({unit.bytes, unit.ring});
  std::sort(sizes.begin(), sizes.end(), [](const Streamed &a, const Streamed &b) { return a.bytes > b.bytes; });
  return sizes;
}

// Bytes of one ring: of the largest units, and of all.
struct RingSizes {
  std::uint64_t largest = 0, all = 0;
};

RingSizes sizes_of(const Sizes &largest_first, std::uint64_t ring_units, int ring) {
  RingSizes out;
  std::uint64_t count = 0;
  for (const Streamed &each : largest_first) {
    if (each.ring != ring) continue;
    if (count++ < ring_units) out.largest += each.bytes;
    out.all += each.bytes;
  }
  return out;
}

RingSizes sizes_of_all(const Sizes &largest_first, std::uint64_t ring_units) {
  RingSizes sum;
  for (int ring = 0; ring < kRings; ++ring) {
    const RingSizes own = sizes_of(largest_first, ring_units, ring);
    sum.largest += own.largest;
    sum.all += own.all;
  }
  return sum;
}

// Rings for units of these sizes. More than all of them together would be wasted.
std::uint64_t ring_for(const Sizes &largest_first, std::uint64_t ring_bytes_min, std::uint64_t ring_units) {
  const RingSizes each = sizes_of_all(largest_first, ring_units);
  return std::min(each.all, std::max(ring_bytes_min, each.largest));
}

// The largest size, and every size that is at most two thirds of the next larger one. Smaller steps are no reason to
// pin the largest units: the few bytes won would cost the even spread.
std::vector<std::uint64_t> bounds_of(const Sizes &largest_first) {
  std::vector<std::uint64_t> bounds(1, largest_first.front().bytes);
  std::uint64_t larger = bounds.front();
  for (const Streamed &each : largest_first) {
    if (each.bytes <= 2 * larger / 3) bounds.push_back(each.bytes);
    larger = each.bytes;
  }
  return bounds;
}

// Van der Corput sequence in base 2: 0, 1/2, 1/4, 3/4, 1/8, ...
double bit_reversed(std::size_t index) {
  double value = 0, weight = 0.5;
  for (; index != 0; index >>= 1, weight /= 2) value += weight * static_cast<double>(index & 1);
  return value;
}

// In the order in which they are considered for pinning.
std::vector<PinKind> kinds_of(const std::vector<Unit> &units) {
  struct Group {
    std::ptrdiff_t rank;
    std::uint64_t bytes = 0;
    std::vector<std::size_t> units;
  };
  std::vector<Group> groups;  // in the order of their first units
  std::map<std::string, std::size_t> group_index;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const auto [found, is_new] = group_index.emplace(units[i].group, groups.size());
    if (is_new) groups.push_back({rank_of(units[i].group), 0, {}});
    groups[found->second].bytes += units[i].bytes;
    groups[found->second].units.push_back(i);
  }
  std::stable_sort(groups.begin(), groups.end(), [](const Group &a, const Group &b) {
    return a.rank != b.rank ? a.rank < b.rank : a.bytes < b.bytes;
  });

  std::vector<PinKind> kinds;
  for (const Group &group : groups) {
    std::vector<PinKind> of_group;
    std::map<std::uint64_t, std::size_t> size_index;
    for (std::size_t i = 0; i < group.units.size(); ++i) {
      const std::uint64_t bytes = units[group.units[i]].bytes;
      const auto [found, is_new] = size_index.emplace(bytes, of_group.size());
      if (is_new) of_group.push_back({bytes, i, {}});
      of_group[found->second].units.push_back(group.units[i]);
    }
    // The most common size first; sizes that occur once so that any number of them is spread over the cycle.
    std::stable_sort(of_group.begin(), of_group.end(), [](const PinKind &a, const PinKind &b) {
      if (a.units.size() != b.units.size()) return a.units.size() > b.units.size();
      return bit_reversed(a.first) < bit_reversed(b.first);
    });
    kinds.insert(kinds.end(), of_group.begin(), of_group.end());
  }
  return kinds;
}

// The pins when no unit larger than `bound` is streamed, and the bytes they leave of `free`.
struct Pins {
  std::uint64_t bytes = 0;
  std::vector<bool> pinned;
};

Pins fill(const std::vector<Unit> &units, const std::vector<PinKind> &kinds, std::uint64_t bound,
          std::uint64_t forced_bytes, std::uint64_t free) {
  Pins pins{forced_bytes, std::vector<bool>(units.size())};
  for (std::size_t i = 0; i < units.size(); ++i) pins.pinned[i] = units[i].bytes > bound;
  for (const PinKind &kind : kinds) {
    if (kind.bytes > bound) continue;
    const std::uint64_t total = kind.units.size(), count = std::min(total, free / kind.bytes);
    for (std::uint64_t i = 0; i < total; ++i) {  // `count` of them at even distances
      if ((i + 1) * count / total > i * count / total) pins.pinned[kind.units[i]] = true;
    }
    pins.bytes += count * kind.bytes;
    free -= count * kind.bytes;
  }
  return pins;
}

}  // namespace

std::uint64_t least_ring(const std::vector<Unit> &streamed, std::uint64_t ring_units) {
  return ring_for(largest_first_of(streamed), 0, ring_units);
}

std::uint64_t part_of_ring(const std::vector<Unit> &streamed, std::uint64_t ring_bytes, std::uint64_t ring_units, int ring) {
  const Sizes sizes = largest_first_of(streamed);
  const RingSizes own = sizes_of(sizes, ring_units, ring), each = sizes_of_all(sizes, ring_units);
  if (each.all == each.largest || ring_bytes <= each.largest) return own.largest;
  const long double share =
      static_cast<long double>(own.all - own.largest) / static_cast<long double>(each.all - each.largest);
  const std::uint64_t more =
      static_cast<std::uint64_t>(share * static_cast<long double>(std::min(ring_bytes, each.all) - each.largest));
  return std::min(own.all, own.largest + more);
}

ResidencyPlan plan_residency(const std::vector<Unit> &units, std::uint64_t budget, std::uint64_t ring_bytes_min,
                             std::uint64_t ring_units, BudgetTooSmall &too_small) {
  too_small.needed = 0;
  const std::uint64_t total = checked_total(units, ring_units);
  ResidencyPlan plan;
  if (total <= budget) {
    for (const Unit &unit : units) plan.pinned.insert(unit.name);
    plan.pinned_bytes = total;
    return plan;
  }

  const Sizes largest_first = largest_first_of(units);
  const std::uint64_t needed = ring_for(largest_first, ring_bytes_min, ring_units);
  if (budget < needed) {
    too_small.needed = needed;
    return plan;
  }

  // Pinning the largest units shrinks the ring, which pays where one kind is much larger than the next (a vocabulary
  // head beside layers). Every bound for streamed units that shrinks it by a third is a candidate; the one that pins the
  // most bytes wins, the first on a tie. The largest bound pins nothing by force and fits, because the budget holds its
  // ring. For one bound the pinned bytes grow with the budget (kinds are filled in a fixed order), and the candidates do
  // not depend on it, hence they grow for the best: more budget never pins fewer bytes.
  const std::vector<PinKind> kinds = kinds_of(units);
  Pins best;
  std::uint64_t most_ring = UINT64_MAX;
  for (const std::uint64_t bound : bounds_of(largest_first)) {
    const auto rest_begin = std::find_if(largest_first.begin(), largest_first.end(),
                                         [bound](const Streamed &each) { return each.bytes <= bound; });
    const std::uint64_t forced =
        std::accumulate(largest_first.begin(), rest_begin, std::uint64_t{0},
                        [](std::uint64_t sum, const Streamed &each) { return sum + each.bytes; });
    if (forced > budget || bound > budget - forced) break;
    const std::uint64_t ring = ring_for(Sizes(rest_begin, largest_first.end()), ring_bytes_min, ring_units);
    if (ring > most_ring) continue;
    most_ring = ring / 3 * 2 + ring % 3 * 2 / 3;  // two thirds, without overflow
    if (ring > budget - forced) continue;
    Pins pins = fill(units, kinds, bound, forced, budget - forced - ring);
    if (best.pinned.empty() || pins.bytes > best.bytes) best = std::move(pins);
  }

  std::vector<Unit> streamed;
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (best.pinned[i]) {
      plan.pinned.insert(units[i].name);
      plan.pinned_bytes += units[i].bytes;
    } else {
      streamed.push_back(units[i]);
      plan.streamed_bytes += units[i].bytes;
    }
  }
  plan.ring_bytes = ring_for(largest_first_of(streamed), ring_bytes_min, ring_units);
  return plan;
}

std::unordered_set<std::string> units_for(const std::vector<Unit> &units, std::uint64_t bytes) {
  checked_total(units, 1);
  const Pins pins = fill(units, kinds_of(units), UINT64_MAX, 0, bytes);
  std::unordered_set<std::string> names;
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (pins.pinned[i]) names.insert(units[i].name);
  }
  return names;
}

}  // namespace edgekit
