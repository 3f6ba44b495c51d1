// The loop itself, over vectors of whatever instruction set a file is compiled for.
#ifndef EDGEKIT_BENCH_PEAK_LOOP_H
#define EDGEKIT_BENCH_PEAK_LOOP_H

#include <cstdint>

#include "kernels/gemm_registers.h"

namespace edgekit {
namespace {

// `step` has each of N registers take one more result, as many as hide how long one takes; that is `operations` each. `Held`
// is a struct with the type V of a register.
template <int N, typename Held, typename Step>
EK_VECTOR_INLINE double run_chains(std::int64_t rounds, double operations, typename Held::V start, const Step &step,
                                   typename Held::V &out) {
  Registers<Held, N> chains;
  // Of different values: chains that are alike might be computed once.
  typename Held::V value = start;
  each(chains, [&](int, typename Held::V &chain) { chain = value = step(value); });
  for (std::int64_t round = 0; round < rounds; ++round) {
    each(chains, [&](int, typename Held::V &chain) {
      chain = step(chain);
#if !defined(_MSC_VER)
      asm volatile("" : "+" EK_VECTOR_REGISTER(chain));  // rounds that are alike would be computed at once otherwise
#endif
    });
  }
  // What nobody looks at would be left out.
  out = start;
  each(chains, [&](int, typename Held::V &chain) {
#if !defined(_MSC_VER)
    asm volatile("" : "+" EK_VECTOR_REGISTER(chain));
#endif
    out = step(chain);
  });
  return operations * N * static_cast<double>(rounds);
}

}  // namespace
}  // namespace edgekit

#endif  // EDGEKIT_BENCH_PEAK_LOOP_H
