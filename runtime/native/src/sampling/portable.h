// e^x, log x and sums with the same bits on every machine; runtime/sampling/portable.py is their specification.
// Tokens are chosen by comparing numbers that come from these.
#ifndef EDGEKIT_SAMPLING_PORTABLE_H
#define EDGEKIT_SAMPLING_PORTABLE_H

#include <cstdint>

namespace edgekit {

// e^x for x up to 88; 0 below -87.
float portable_exp(float x);

// e^x for x up to 700; 0 below -700. The relative error is below 1e-11.
double portable_exp(double x);

// The natural logarithm of a positive normal number.
double portable_log(double x);

// ((x0 + x1) + x2) + ... in float64.
double total(const float *x, std::int64_t count);

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_PORTABLE_H
