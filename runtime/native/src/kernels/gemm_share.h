// How products of panels are shared among threads.
#ifndef EDGEKIT_KERNELS_GEMM_SHARE_H
#define EDGEKIT_KERNELS_GEMM_SHARE_H

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>

#include "kernels/gemm_workspace.h"
#include "thread_pool.h"

namespace edgekit {

// The shortest part of a panel that is worth a task of its own.
constexpr std::int64_t kLeastQuads = 64;

inline void add_sums(const Sums &part, std::int64_t rows, Sums &total) {
  for (std::int64_t i = 0; i < rows * kPanelRows; ++i) total.integers[i] += part.integers[i];
}

// Computes `count` products of `rows` rows with a panel. When fewer are left than there are threads, those are
// split along their columns, so that no thread idles while others compute a whole panel; sums of integers do not
// depend on that.
//   sum(index, first_quad, end_quad, sums, second_sums, work) writes the sums over these columns
//   finish(index, sums, second_sums) turns the sums over all columns into results
// `both` says whether there are second sums.
template <typename Sum, typename Finish>
void share_panels(ThreadPool &pool, void *scratch, std::int64_t count, std::int64_t rows, std::int64_t quads,
                  bool both, const Sum &sum, const Finish &finish) {
  const std::int64_t left = count % pool.size();
  const std::int64_t most = left > 0 ? std::max<std::int64_t>(1, std::min(pool.size() / left, quads / kLeastQuads)) : 1;
  const std::int64_t piece_quads = most > 1 ? round_up(ceil_div(quads, most), 16) : quads;
  const std::int64_t pieces = ceil_div(quads, piece_quads);
  const std::int64_t whole = pieces > 1 ? count - left : count;
  for (std::int64_t i = 0; i < count - whole; ++i) {
    // The first piece of a panel counts those that are not done.
    new (&piece(scratch, i * pieces).undone) std::atomic<std::int64_t>(pieces);
  }
  pool.run(whole + (count - whole) * pieces, [&](std::int64_t task, int thread) {
    Workspace &work = workspace(pool, scratch, thread);
    if (task < whole) {
      sum(task, std::int64_t{0}, quads, work.sums, work.second_sums, work);
      finish(task, work.sums, work.second_sums);
      return;
    }
    const std::int64_t split = (task - whole) / pieces;
    const std::int64_t first_quad = (task - whole) % pieces * piece_quads;
    Piece &own = piece(scratch, task - whole);
    sum(whole + split, first_quad, std::min(quads, first_quad + piece_quads), own.sums, own.second_sums, work);
    Piece &total = piece(scratch, split * pieces);
    if (total.undone.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    for (std::int64_t i = 1; i < pieces; ++i) {
      const Piece &part = piece(scratch, split * pieces + i);
      add_sums(part.sums, rows, total.sums);
      if (both) add_sums(part.second_sums, rows, total.second_sums);
    }
    finish(whole + split, total.sums, total.second_sums);
  });
}

}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_GEMM_SHARE_H
