// Where buffers lie that live for a part of a program: those that do not live at the same time share memory.
#ifndef EDGEKIT_EXECUTOR_SCRATCH_PLAN_H
#define EDGEKIT_EXECUTOR_SCRATCH_PLAN_H

#include <cstddef>
#include <vector>

namespace edgekit {

constexpr std::size_t kScratchAlignment = 64;

// From the step that writes a buffer first to the last step that reads it, both included.
struct Lifetime {
  int first = 0;
  int last = 0;
};

// The order of buffers in memory is decided once, by first fit for example sizes; offsets follow for any sizes.
// Larger sizes therefore never need less memory, which first fit for each size would not promise.
class ScratchPlan {
 public:
  ScratchPlan() = default;
  ScratchPlan(std::vector<Lifetime> lifetimes, const std::vector<std::size_t> &example_sizes);

  // Offsets (multiples of 64) for buffers of these sizes; returns the bytes of all of them together.
  std::size_t place(const std::vector<std::size_t> &sizes, std::vector<std::size_t> &offsets) const;

 private:
  bool overlap(std::size_t a, std::size_t b) const;

  std::vector<Lifetime> lifetimes_;
  std::vector<std::size_t> order_;  // buffers by ascending offset
};

}  // namespace edgekit

#endif  // EDGEKIT_EXECUTOR_SCRATCH_PLAN_H
