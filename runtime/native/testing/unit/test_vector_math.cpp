// The functions of kernels/vector_math.h against double precision, on lanes of single floats; the tests of the
// kernels that use them compare instruction sets.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/vector_math_scalar.h"
#include "unit.h"

using namespace edgekit;

namespace {

// Calls f for floats of all exponents and both signs, every 997th bit pattern.
template <typename F>
void over_floats(const F &f) {
  for (std::uint64_t bits = 0; bits <= 0xffffffffu; bits += 997) {
    const std::uint32_t pattern = static_cast<std::uint32_t>(bits);
    float x;
    std::memcpy(&x, &pattern, sizeof x);
    if (std::isfinite(x)) f(x);
  }
}

// |got - expected| in units in the last place of the expected value (of the smallest normal number below that).
double ulps(float got, double expected) {
  const double magnitude = std::max(std::fabs(expected), static_cast<double>(std::numeric_limits<float>::min()));
  int exponent;
  std::frexp(magnitude, &exponent);
  return std::fabs(got - expected) / std::ldexp(1.0, exponent - 24);
}

constexpr float kInfinite = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace

EK_TEST(vector_exp_is_within_one_unit) {
  over_floats([](float x) {
    const float y = vector_exp<ScalarLanes>(x);
    if (x < -87.3f) {
      EK_CHECK(y == 0.0f);
    } else if (x <= 88.7f) {
      EK_CHECK(ulps(y, std::exp(static_cast<double>(x))) <= 1.0);
    } else {
      EK_CHECK(y == vector_exp<ScalarLanes>(88.7f));
    }
  });
  EK_CHECK(vector_exp<ScalarLanes>(-kInfinite) == 0.0f);
  EK_CHECK(std::isfinite(vector_exp<ScalarLanes>(kInfinite)));
  EK_CHECK(std::isnan(vector_exp<ScalarLanes>(kNan)));
}

EK_TEST(vector_tanh_is_within_three_units) {
  over_floats([](float x) {
    EK_CHECK(ulps(vector_tanh<ScalarLanes>(x), std::tanh(static_cast<double>(x))) <= 3.0);
  });
  EK_CHECK(std::signbit(vector_tanh<ScalarLanes>(-0.0f)));
  EK_CHECK(vector_tanh<ScalarLanes>(kInfinite) == 1.0f && vector_tanh<ScalarLanes>(-kInfinite) == -1.0f);
  EK_CHECK(std::isnan(vector_tanh<ScalarLanes>(kNan)));
}

EK_TEST(vector_silu_is_within_three_units) {
  over_floats([](float x) {
    const double wide = x;
    const float y = vector_silu<ScalarLanes>(x);
    if (x >= -87.3f) {
      EK_CHECK(ulps(y, wide / (1 + std::exp(-wide))) <= 3.0);
    } else {
      EK_CHECK(std::fabs(y) <= std::fabs(wide) * 1.3e-38);
    }
  });
  EK_CHECK(std::isnan(vector_silu<ScalarLanes>(kNan)));
}

EK_TEST(vector_gelu_tanh_is_within_three_units_or_2e_7) {
  over_floats([](float x) {
    const double wide = x;
    const double u = 0.79788456080286536 * (wide + 0.044715 * wide * wide * wide);
    const double expected = wide / (1 + std::exp(-2 * u));
    const float y = vector_gelu_tanh<ScalarLanes>(x);
    if (x >= -1.0f) {
      EK_CHECK(ulps(y, expected) <= 3.0);
    } else {
      EK_CHECK(std::fabs(y - expected) <= 2e-7 + std::fabs(wide) * 1.3e-38);
    }
  });
  EK_CHECK(vector_gelu_tanh<ScalarLanes>(kInfinite) == kInfinite);
  EK_CHECK(std::isnan(vector_gelu_tanh<ScalarLanes>(kNan)));
}
