#include "sampling/llada_scores.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "error.h"
#include "kernels/noise.h"
#include "sampling/portable.h"
#include "sampling/roles.h"

namespace edgekit {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Values of noise that are in memory at once.
constexpr std::int64_t kNoiseValues = 65536;

// A NaN anywhere comes out as NaN.
float highest_of(const float *row, std::int64_t count) {
  float highest = row[0];
  for (std::int64_t i = 0; i < count; ++i) {
    if (std::isnan(row[i])) return row[i];
    highest = std::max(highest, row[i]);
  }
  return highest;
}

// argmax(scores + scale * noise) of `count` rows [count, vocabulary], which are `first`... of the `positions` rows that
// the noise covers.
std::vector<std::int64_t> argmax_with_noise(const std::vector<float> &scores, std::int64_t count,
                                            std::int64_t vocabulary, const GumbelDraw &gumbel, std::int64_t first,
                                            std::int64_t positions) {
  std::vector<float> best(static_cast<std::size_t>(count), -kInfinity);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(count), 0);
  const std::int64_t tile = std::max<std::int64_t>(1, kNoiseValues / positions);
  std::vector<float> noise;
  for (std::int64_t start = 0; start < vocabulary; start += tile) {
    const std::int64_t stop = std::min(vocabulary, start + tile), values = (stop - start) * positions;
    noise.resize(static_cast<std::size_t>(values));
    gumbel_noise(gumbel.seed, gumbel.draw, static_cast<std::uint64_t>(start * positions), values, noise.data());
    for (std::int64_t r = 0; r < count; ++r) {
      const float *row = scores.data() + r * vocabulary;
      const float *own = noise.data() + first + r;
      for (std::int64_t token = start; token < stop; ++token) {
        const float value = row[token] + gumbel.scale * own[(token - start) * positions];
        if (value > best[static_cast<std::size_t>(r)]) {
          best[static_cast<std::size_t>(r)] = value;
          tokens[static_cast<std::size_t>(r)] = token;
        }
      }
    }
  }
  return tokens;
}

// exp(score - highest).
double weight(float score, float highest) {
  return portable_exp(static_cast<double>(score) - static_cast<double>(highest));
}

// (1 - p) / p with p = softmax(row)[token].
double odds_against(const float *row, std::int64_t count, float highest, std::int64_t token) {
  double others = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (i != token) others += weight(row[i], highest);
  }
  return others / weight(row[token], highest);
}

// What acceptance rules look at, but for the token's own probability.
void add_evidence(const float *row, std::int64_t count, float highest, Proposal &proposal) {
  const std::int64_t best = std::max_element(row, row + count) - row;
  double sum = 0, weighted = 0, second = 0;  // weighted: of the logarithms of the weights
  for (std::int64_t i = 0; i < count; ++i) {
    const double own = weight(row[i], highest);
    sum += own;
    if (own > 0) weighted += own * (static_cast<double>(row[i]) - static_cast<double>(highest));
    if (i != best) second = std::max(second, own);
  }
  const double top = weight(row[best], highest);
  proposal.best.push_back(best);
  proposal.best_probability.push_back(top / sum);
  proposal.entropy.push_back(portable_log(sum) - weighted / sum);
  proposal.margin.push_back((top - second) / sum);
}

}  // namespace

LladaScores::LladaScores(std::vector<std::int64_t> rows, std::int64_t at_once, std::int64_t vocabulary)
    : rows_(std::move(rows)), at_once_(at_once), vocabulary_(vocabulary) {}

std::int64_t LladaScores::stop() const {
  return std::min(static_cast<std::int64_t>(rows_.size()), start_ + at_once_);
}

HeadRequest LladaScores::request() const {
  HeadRequest request;
  request.all_rows = false;
  request.rows.assign(rows_.begin() + static_cast<std::ptrdiff_t>(start_),
                      rows_.begin() + static_cast<std::ptrdiff_t>(stop()));
  request.logits = true;
  return request;
}

void LladaScores::take(HeadResult &&answer, const LladaOptions &options,
                       const std::optional<GumbelDraw> &gumbel) {
  const bool guided = options.cfg_scale > 0;
  if (guided && pass_ != Pass::unconditional) {
    conditional_ = std::move(answer.logits);
    conditional_roles_ = std::move(answer.roles);
    pass_ = Pass::unconditional;
    return;
  }
  const std::int64_t count = stop() - start_;
  std::vector<float> scores = std::move(answer.logits);
  if (guided) {
    const float scale = static_cast<float>(options.cfg_scale + 1);
    for (std::size_t i = 0; i < scores.size(); ++i) scores[i] += scale * (conditional_[i] - scores[i]);
  }
  if (options.logits_eos_inf) {
    for (std::int64_t r = 0; r < count; ++r) {
      for (const std::int64_t token : options.eos_token_ids)
        scores[static_cast<std::size_t>(r * vocabulary_ + token)] = -kInfinity;
    }
  }

  std::vector<float> highest;
  for (std::int64_t r = 0; r < count; ++r) highest.push_back(highest_of(row(scores, r), vocabulary_));
  const auto bad = std::count_if(highest.begin(), highest.end(), [](float value) { return !std::isfinite(value); });
  if (bad != 0)
    fail(EK_NOT_FINITE, "cfg_scale and logits_eos_inf leave ", bad, " of ", count,
         " positions without a finite score; use a smaller cfg_scale or fewer eos_token_ids");
  std::vector<std::int64_t> tokens;
  if (gumbel) {
    tokens = argmax_with_noise(scores, count, vocabulary_, *gumbel, start_, static_cast<std::int64_t>(rows_.size()));
  } else {
    for (std::int64_t r = 0; r < count; ++r)
      tokens.push_back(std::max_element(row(scores, r), row(scores, r) + vocabulary_) - row(scores, r));
  }
  for (std::int64_t r = 0; r < count; ++r) {
    const auto i = static_cast<std::size_t>(r);
    const double odds = odds_against(row(scores, r), vocabulary_, highest[i], tokens[i]);
    proposal_.confidence.push_back(llada_confidence(odds));
    if (options.rules.any()) {
      proposal_.probability.push_back(llada_probability(proposal_.confidence.back()));
      add_evidence(row(scores, r), vocabulary_, highest[i], proposal_);
    }
  }
  const std::vector<std::int64_t> roles = likeliest_roles(guided ? conditional_roles_ : answer.roles);
  proposal_.roles.insert(proposal_.roles.end(), roles.begin(), roles.end());
  proposal_.tokens.insert(proposal_.tokens.end(), tokens.begin(), tokens.end());
  start_ = stop();
  conditional_.clear();
  // Both passes of the guidance replace each other's hidden states, so only plain chunks can reuse them.
  pass_ = guided ? Pass::conditional : Pass::again;
}

}  // namespace edgekit
