// e^x, log x and sums with the same bits on every machine. Tokens are chosen by comparing numbers that come from these.
//
// The functions of mathematical libraries differ in the last place, and libraries add in an order that depends on lengths
// and processors. So everything that is compared is built from single IEEE operations rounded to nearest even, in the
// order written here, with nothing fused (-ffp-contract=off).
//
//   exp(x), float64. k = x * log2(e) rounded to nearest even; r = x - k * ln2; p = c9; p = p*r + c8; ...;
//     p = p*r + c0 with cn = 1/n!; e^x = p * 2^k (exact), 0 where x < -700, infinity where x > 700. The relative
//     error is below 1e-11.
//   exp(x), float32. That rounded to float32, 0 where x < -87.
//   log(x), float64. x = 2^k * m with sqrt(1/2) <= m < sqrt(2); f = m - 1 (exact); s = f / (2 + f); z = s*s;
//     p = d10; p = p*z + d9; ...; p = p*z + d1 with dn = 1/(2n + 1); t = 2*s; log x = k*ln2 + (t + t*(z*p)).
//     Two units in the last place.
#ifndef EDGEKIT_SAMPLING_PORTABLE_H
#define EDGEKIT_SAMPLING_PORTABLE_H

#include <cstdint>

namespace edgekit {

// e^x; 0 below -87, infinity where it is no float32. NaN of NaN.
float portable_exp(float x);

// e^x; 0 below -700, infinity above 700, NaN of NaN. The relative error is below 1e-11.
double portable_exp(double x);

// The natural logarithm of a positive normal number.
double portable_log(double x);

// ((x0 + x1) + x2) + ... in float64.
double total(const float *x, std::int64_t count);

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_PORTABLE_H
