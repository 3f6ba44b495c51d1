// The kernels of head_kernels.h for any lanes struct of vector_math.h that can also transpose a square of vectors.
#ifndef EDGEKIT_KERNELS_HEAD_ROWS_H
#define EDGEKIT_KERNELS_HEAD_ROWS_H

#include <limits>

#include "kernels/head_kernels.h"
#include "kernels/vector_math.h"

namespace edgekit {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

template <typename L>
void head_scale(const HeadScale &scale, float *z, std::int64_t count) {
  const auto temperature = L::set(scale.temperature), softcap = L::set(scale.softcap);
  if (scale.softcap > 0.0f) {
    for (std::int64_t i = 0; i < count; i += L::kWidth) {
      const auto capped = L::mul(softcap, vector_tanh<L>(L::div(L::load(z + i), softcap)));
      L::store(z + i, L::div(capped, temperature));
    }
  } else if (scale.temperature != 1.0f) {
    for (std::int64_t i = 0; i < count; i += L::kWidth) L::store(z + i, L::div(L::load(z + i), temperature));
  }
}

template <typename L>
float head_largest(const float *z, std::int64_t count) {
  // The second operand of max stays where the first is NaN. Two chains hide the latency.
  auto even = L::set(kNothing), odd = even;
  for (std::int64_t i = 0; i < count; i += kHeadLanes) {
    for (int j = 0; j < kHeadLanes / L::kWidth; j += 2) even = L::max(L::load(z + i + j * L::kWidth), even);
    for (int j = 1; j < kHeadLanes / L::kWidth; j += 2) odd = L::max(L::load(z + i + j * L::kWidth), odd);
  }
  float lanes[L::kWidth];
  L::store(lanes, L::max(odd, even));
  float out = kNothing;
  for (float lane : lanes) out = lane > out ? lane : out;
  return out;
}

// Numbers that are summed in float32 before their sum joins the others in float64: next to e = 1 every addition of a
// small e rounds it.
constexpr std::int64_t kFloatSum = 512;

template <typename L>
bool head_exponentials(float *z, std::int64_t count, float top, bool keep, double *sums) {
  constexpr int kVectors = kHeadLanes / L::kWidth;
  const auto highest = L::set(top), lowest = L::set(-1000.0f);
  sums[0] = sums[1] = 0.0;
  for (std::int64_t begin = 0; begin < count; begin += kFloatSum) {
    const std::int64_t end = count - begin < kFloatSum ? count : begin + kFloatSum;
    typename L::Float sum[kVectors], product[kVectors];
    for (int j = 0; j < kVectors; ++j) sum[j] = product[j] = L::set(0.0f);
    for (std::int64_t i = begin; i < end; i += kHeadLanes) {
      for (int j = 0; j < kVectors; ++j) {
        float *at = z + i + j * L::kWidth;
        // -infinity becomes finite, so that its product with e = 0 is 0; a NaN passes.
        const auto d = L::max(lowest, L::sub(L::load(at), highest));
        const auto e = vector_exp<L>(d);
        sum[j] = L::add(sum[j], e);
        product[j] = L::add(product[j], L::mul(d, e));
        if (keep) L::store(at, e);
      }
    }
    float lanes[2][kHeadLanes];
    for (int j = 0; j < kVectors; ++j) {
      L::store(lanes[0] + j * L::kWidth, sum[j]);
      L::store(lanes[1] + j * L::kWidth, product[j]);
    }
    for (int s = 0; s < 2; ++s) {
      for (float lane : lanes[s]) sums[s] += static_cast<double>(lane);
    }
  }
  return sums[0] != 0.0;  // no e is negative
}

template <typename L>
bool head_drop(float *e, std::int64_t count, float each, float most) {
  constexpr int kVectors = kHeadLanes / L::kWidth, kLimits = 5;
  const float limits[kLimits] = {4 * each, 16 * each, 64 * each, 256 * each, std::numeric_limits<float>::max()};
  typename L::Float sums[kLimits][kVectors], bounds[kLimits];
  const auto zero = L::set(0.0f);
  for (int k = 0; k < kLimits; ++k) {
    bounds[k] = L::set(limits[k]);
    for (int j = 0; j < kVectors; ++j) sums[k][j] = zero;
  }
  for (std::int64_t i = 0; i < count; i += kHeadLanes) {
    for (int j = 0; j < kVectors; ++j) {
      const auto x = L::load(e + i + j * L::kWidth);
      for (int k = 0; k < kLimits; ++k) sums[k][j] = L::add(sums[k][j], L::select_less_equal(x, bounds[k], x, zero));
    }
  }
  float limit = each;
  for (int k = 0; k < kLimits; ++k) {
    float lanes[kHeadLanes], sum = 0.0f;
    for (int j = 0; j < kVectors; ++j) L::store(lanes + j * L::kWidth, sums[k][j]);
    for (float lane : lanes) sum += lane;
    if (sum <= most) limit = limits[k];
  }
  const auto bound = L::set(limit);
  auto left = zero;  // no e is negative, and a NaN stays
  for (std::int64_t i = 0; i < count; i += L::kWidth) {
    const auto x = L::select_less_equal(L::load(e + i), bound, zero, L::load(e + i));
    L::store(e + i, x);
    left = L::add(left, x);
  }
  float lanes[L::kWidth];
  L::store(lanes, left);
  for (float lane : lanes) {
    if (!(lane == 0.0f)) return true;
  }
  return false;
}

template <typename L>
void head_sample(const NoisyScores &scores, std::int64_t first, const NoisyBest &best) {
  const auto noise_scale = L::set(scores.noise_scale);
  for (std::int64_t row = 0; row < scores.rows; row += L::kWidth) {
    auto best_score = L::load(best.score + row), best_token = L::load(best.token + row), best_z = L::load(best.z + row);
    for (std::int64_t token = 0; token < scores.tokens; token += L::kWidth) {
      typename L::Float z[L::kWidth];  // after the transposition a token each, its lanes are rows
      for (int j = 0; j < L::kWidth; ++j) z[j] = L::load(scores.z + (row + j) * scores.stride + token);
      L::transpose(z);
      for (int j = 0; j < L::kWidth; ++j) {
        const auto noise = L::load(scores.noise + (token + j) * scores.rows + row);
        const auto score = L::add(z[j], L::mul(noise, noise_scale));
        const auto number = L::set(static_cast<float>(first + token + j));
        best_token = L::select_less_equal(score, best_score, best_token, number);
        best_z = L::select_less_equal(score, best_score, best_z, z[j]);
        best_score = L::select_less_equal(score, best_score, best_score, score);
      }
    }
    L::store(best.score + row, best_score);
    L::store(best.token + row, best_token);
    L::store(best.z + row, best_z);
  }
}

}  // namespace
}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_HEAD_ROWS_H
