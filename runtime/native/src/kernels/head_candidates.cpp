#include "kernels/head_candidates.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace edgekit {

HeadCandidates::HeadCandidates(std::int64_t rows, std::int64_t k)
    : rows_(rows),
      k_(k),
      heap_(static_cast<std::size_t>(rows * k)),
      count_(static_cast<std::size_t>(k > 0 ? rows : 0), 0) {}

std::size_t HeadCandidates::bytes(std::int64_t rows, std::int64_t k) {
  if (k == 0) return 0;
  return static_cast<std::size_t>(rows) * (static_cast<std::size_t>(k) * sizeof(Candidate) + sizeof(std::int64_t));
}

bool HeadCandidates::better(const Candidate &a, const Candidate &b) {
  return a.rank != b.rank ? a.rank > b.rank : a.id < b.id;
}

// An integer, so that the order is total even where weights are broken and z is NaN.
std::int32_t HeadCandidates::rank_of(float z) {
  if (z != z) return std::numeric_limits<std::int32_t>::min();
  z += 0.0f;  // -0 is no less than 0
  std::int32_t bits;
  std::memcpy(&bits, &z, sizeof bits);
  return bits >= 0 ? bits : bits ^ std::numeric_limits<std::int32_t>::max();
}

void HeadCandidates::add(std::int64_t row, std::int64_t first, const float *z, std::int64_t count) {
  if (k_ == 0) return;
  Candidate *heap = heap_.data() + row * k_;
  std::int64_t &have = count_[static_cast<std::size_t>(row)];
  std::int64_t i = 0;
  for (; i < count && have < k_; ++i) {
    heap[have++] = {first + i, z[i], rank_of(z[i])};
    std::push_heap(heap, heap + have, better);
  }
  constexpr std::int64_t kStep = 16;
  while (i < count) {
    const std::int64_t end = std::min(count, i + kStep);
    int any = 0;  // without a branch, so that compilers compare vectors
    for (std::int64_t j = i; j < end; ++j) any |= !(z[j] <= heap[0].z);
    for (; any != 0 && i < end; ++i) {
      const Candidate next = {first + i, z[i], rank_of(z[i])};
      if (!better(next, heap[0])) continue;
      std::pop_heap(heap, heap + k_, better);
      heap[k_ - 1] = next;
      std::push_heap(heap, heap + k_, better);
    }
    i = end;
  }
}

void HeadCandidates::result(std::int64_t *ids, float *z) {
  for (std::int64_t row = 0; row < rows_ && k_ > 0; ++row) {
    Candidate *heap = heap_.data() + row * k_;
    std::sort(heap, heap + k_, better);
    for (std::int64_t i = 0; i < k_; ++i) {
      ids[row * k_ + i] = heap[i].id;
      z[row * k_ + i] = heap[i].z;
    }
  }
}

}  // namespace edgekit
