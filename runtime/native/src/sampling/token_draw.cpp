#include "sampling/token_draw.h"

#include <algorithm>

#include "sampling/portable.h"

namespace edgekit {

std::vector<double> nucleus(const std::vector<float> &probabilities, std::optional<double> top_p) {
  std::vector<double> kept;
  double before = 0;
  for (const float probability : probabilities) {
    if (!kept.empty() && top_p && *top_p < 1 && before > *top_p) break;
    kept.push_back(static_cast<double>(probability));
    before += static_cast<double>(probability);
  }
  for (double &probability : kept) probability /= before;  // the sum of all that were kept
  return kept;
}

std::size_t drawn_index(const std::vector<double> &probabilities, double uniform) {
  std::size_t index = 0;
  double sum = probabilities[0];
  while (index + 1 < probabilities.size() && sum < uniform) sum += probabilities[++index];
  return index;
}

TokenDraw::TokenDraw(std::optional<std::int64_t> top_k, std::optional<double> top_p, double temperature, bool noise)
    : top_k_(top_k.value_or(0) > 0 ? top_k : std::nullopt),
      top_p_(top_p.value_or(1) < 1 ? top_p : std::nullopt),
      temperature_(temperature),
      noise_(noise) {}

void TokenDraw::ask(HeadRequest &request, std::int64_t rows, std::int64_t vocabulary, Draws &draws) {
  uniform_.clear();
  if (temperature_ <= 0) return;
  const auto temperature = static_cast<float>(temperature_);
  if (!noise_) request.temperature = temperature;
  if (!filters()) {
    request.gumbel = draws.gumbel(noise_ ? temperature : 1.0f);
    return;
  }
  uniform_ = draws.uniform(rows);
  // A nucleus alone may hold any number of tokens.
  request.top_k = std::max(request.top_k, std::min(top_k_.value_or(vocabulary), vocabulary));
}

void TokenDraw::take(HeadResult &answer) const {
  if (uniform_.empty()) return;
  const std::size_t rows = uniform_.size(), width = answer.top_z.size() / rows;
  const std::size_t most = top_k_ ? std::min(width, static_cast<std::size_t>(*top_k_)) : width;
  answer.sample.resize(rows);
  answer.sample_prob.resize(rows);
  std::vector<float> probabilities(most);
  for (std::size_t r = 0; r < rows; ++r) {
    const float *z = answer.top_z.data() + r * width;
    double sum = 0;
    for (std::size_t k = 0; k < most; ++k) {
      probabilities[k] = portable_exp(z[k] - z[0]);
      sum += static_cast<double>(probabilities[k]);
    }
    // The nucleus is one of what the first filter leaves.
    for (float &probability : probabilities) probability = static_cast<float>(static_cast<double>(probability) / sum);
    const std::vector<double> kept = nucleus(probabilities, top_p_);
    const std::size_t index = drawn_index(kept, uniform_[r]);
    answer.sample[r] = answer.top_ids[r * width + index];
    answer.sample_prob[r] = static_cast<float>(kept[index]);
    double entropy = 0;
    for (const double probability : kept) {
      if (probability > 0) entropy -= probability * portable_log(probability);
    }
    answer.entropy[r] = static_cast<float>(entropy);
  }
}

}  // namespace edgekit
