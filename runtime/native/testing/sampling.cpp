// Sums and schedules of the samplers, for tests in Python.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "edgekit.h"
#include "sampling/acceptance.h"
#include "sampling/portable.h"
#include "sampling/schedule.h"

using namespace edgekit;

extern "C" {

EK_API void ekt_portable_exp(const float *x, std::int64_t count, float *y) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = portable_exp(x[i]);
}

EK_API void ekt_portable_log(const double *x, std::int64_t count, double *y) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = portable_log(x[i]);
}

EK_API double ekt_portable_total(const float *x, std::int64_t count) { return total(x, count); }

EK_API float ekt_linear_temperature(std::int64_t remaining, std::int64_t steps, double t_min, double t_max) {
  return linear_temperature(remaining, steps, t_min, t_max);
}

EK_API void ekt_accept_by_entropy(const float *entropy, std::int64_t count, double bound, std::uint8_t *accepted) {
  const std::vector<std::uint8_t> result = accept_by_entropy({entropy, entropy + count}, bound);
  std::copy(result.begin(), result.end(), accepted);
}

EK_API std::int64_t ekt_transfer_count(std::int64_t masked, std::int64_t steps, std::int64_t step) {
  return transfer_count(masked, steps, step);
}

EK_API std::int64_t ekt_count_by_factor(const float *confidence, std::int64_t count, double factor) {
  return count_by_factor({confidence, confidence + count}, factor);
}

EK_API std::int64_t ekt_count_by_entropy(const double *entropy, std::int64_t count, double bound) {
  return count_by_entropy({entropy, entropy + count}, bound);
}

// times [steps + 1], shares [steps].
EK_API void ekt_timesteps(std::int64_t steps, double eps, float *times, float *shares) {
  const std::vector<float> result = timesteps(steps, eps);
  std::copy(result.begin(), result.end(), times);
  for (std::int64_t i = 0; i < steps; ++i) shares[i] = transfer_probability(result, i);
}

}  // extern "C"
