#include "sampling/portable.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace edgekit {
namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;
constexpr double kSqrtHalf = 0.7071067811865476;
constexpr float kLowest = -87.0f;
constexpr double kWidest = 700.0;  // e^x and e^-x are normal numbers

// 1.5 * 2^52: what is added to it and taken away again is rounded to an integer, half to even, as rint does but
// without a call.
constexpr double kRounder = 6755399441055744.0;

constexpr double kExp[] = {1.0,       1.0,       1.0 / 2,    1.0 / 6,     1.0 / 24,
                           1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880};
constexpr double kLog[] = {1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11,
                           1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};

}  // namespace

double portable_exp(double x) {
  if (x < -kWidest) return 0.0;
  if (!(x <= kWidest)) return x + std::numeric_limits<double>::infinity();  // NaN stays one
  const double k = (x * kLog2E + kRounder) - kRounder;
  const double r = x - k * kLn2;
  double p = kExp[9];
  for (int n = 8; n >= 0; --n) p = p * r + kExp[n];
  const std::uint64_t bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(k) + 1023) << 52;
  double power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}

float portable_exp(float x) {
  return x < kLowest ? 0.0f : static_cast<float>(portable_exp(static_cast<double>(x)));
}

double portable_log(double x) {
  int k = 0;
  double m = std::frexp(x, &k);
  if (m < kSqrtHalf) {
    m *= 2;
    --k;
  }
  const double f = m - 1;
  const double s = f / (f + 2);
  const double z = s * s;
  double p = kLog[9];
  for (int n = 8; n >= 0; --n) p = p * z + kLog[n];
  const double t = 2 * s;
  return k * kLn2 + (t + t * (z * p));
}

double total(const float *x, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]);
  return sum;
}

}  // namespace edgekit
