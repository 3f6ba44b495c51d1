// Which runs stay in memory and which are streamed every step.
//
// Runs are used in a fixed cycle, so a cache that evicts by recency never hits, while every pinned byte saves one byte of
// reading per step, whichever run it belongs to, where every step uses it. Hence: pin as many bytes as fit; among equal bytes pin first what cannot
// hide its own read, and spread the rest evenly so that the reader always has computation to hide behind. Experts come
// before dense parts: an expert computes a few rows with its bytes, a layer or the vocabulary head the whole canvas. While
// the head computes, a disk whose buffers are full would stand still; streaming the head itself keeps it busy. Sparse
// experts, of which a step uses some alone, come last: a pinned one saves nothing in the others.
#ifndef EDGEKIT_RESIDENCY_H
#define EDGEKIT_RESIDENCY_H

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

namespace edgekit {

struct Unit {
  std::string name;
  std::uint64_t bytes = 0;
  std::string group;  // "dense small" is pinned first, then "expert"; "sparse expert" last
  int ring = 0;       // that it streams through, of kRings
};

// What is read by different means is read ahead in memory of its own.
constexpr int kRings = 2;

struct ResidencyPlan {
  std::unordered_set<std::string> kept;  // by an engine, in memory of its own; pinned too where rows are looked up
  std::unordered_set<std::string> pinned;
  std::uint64_t kept_bytes = 0;
  std::uint64_t passing_bytes = 0;  // memory that they come through, before any of the rest is taken
  std::uint64_t pinned_bytes = 0;
  std::uint64_t streamed_bytes = 0;  // per step
  std::uint64_t ring_bytes = 0;  // of all rings
};

struct BudgetTooSmall {
  std::uint64_t needed = 0;  // 0: the budget is enough
};

// Memory of all rings for these streamed units: in each there is room for the `ring_units` largest of its own.
std::uint64_t least_ring(const std::vector<Unit> &streamed, std::uint64_t ring_units);

// The part of one ring in `ring_bytes` for all of them. What is beyond the least goes where most is streamed.
std::uint64_t part_of_ring(const std::vector<Unit> &streamed, std::uint64_t ring_bytes, std::uint64_t ring_units, int ring);

// Units in execution order. When the budget is too small, `too_small.needed` says what would be enough and the plan
// is empty. Throws Error (EK_INVALID_ARGUMENT) for units without bytes or listed twice.
ResidencyPlan plan_residency(const std::vector<Unit> &units, std::uint64_t budget, std::uint64_t ring_bytes_min,
                             std::uint64_t ring_units, BudgetTooSmall &too_small);

// The units that memory of that size is worth most to where nothing streams through it.
std::unordered_set<std::string> units_for(const std::vector<Unit> &units, std::uint64_t bytes);

}  // namespace edgekit

#endif  // EDGEKIT_RESIDENCY_H
