// Loops of one instruction on registers: what no kernel of that kind of product exceeds.
#ifndef EDGEKIT_BENCH_PEAK_H
#define EDGEKIT_BENCH_PEAK_H

#include <cstdint>
#include <vector>

namespace edgekit {

struct PeakLoop {
  const char *instructions;     // "vpdpbusd", "sdot", ...
  const char *instruction_set;  // see cpu.h
  // Runs so many rounds on this thread; gives how many operations that were, a product and a sum being two. `kept` keeps
  // the compiler from leaving the work out.
  double (*run)(std::int64_t rounds, float *kept);
};

// Those that this process may run, the fastest first; the last needs nothing.
std::vector<PeakLoop> int8_loops();
std::vector<PeakLoop> float_loops();

// By file.
extern const PeakLoop kInt8PeakAvx512, kInt8PeakAvxVnni, kInt8PeakAvx2, kInt8PeakI8mm, kInt8PeakDotprod;
extern const PeakLoop kFloatPeakAvx512, kFloatPeakAvx2;

}  // namespace edgekit

#endif  // EDGEKIT_BENCH_PEAK_H
