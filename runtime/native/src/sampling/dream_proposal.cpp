#include "sampling/dream_proposal.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "sampling/portable.h"
#include "sampling/schedule.h"

namespace edgekit {
namespace {

using Ids = std::vector<std::int64_t>;

// Enough for the nucleus of all but the flattest rows, and little beside the vocabulary.
constexpr std::int64_t kCandidates = 256;
// The published entropy is sum p * log(p + 1e-10), so that p = 0 needs no special case.
constexpr double kLogFloor = 1e-10;

// Candidates of one row, the most probable first.
struct Candidates {
  const std::int64_t *ids;
  std::vector<float> probabilities;
};

// exp(z - log_z).
std::vector<float> probabilities_of(const float *z, std::size_t count, float log_z) {
  std::vector<float> probabilities(count);
  for (std::size_t i = 0; i < count; ++i) probabilities[i] = portable_exp(z[i] - log_z);
  return probabilities;
}

// Filters, renormalises and draws; the candidates are already limited by top_k. Without `uniform` the best token is
// taken, otherwise the first whose cumulative probability reaches it.
std::pair<std::int64_t, float> draw(const Candidates &row, const double *uniform, const DreamOptions &options) {
  std::vector<double> kept;  // a token stays while the probability before it does not exceed top_p
  double before = 0;
  for (const float probability : row.probabilities) {
    if (!kept.empty() && options.top_p && *options.top_p < 1 && before > *options.top_p) break;
    kept.push_back(static_cast<double>(probability));
    before += static_cast<double>(probability);
  }
  for (double &probability : kept) probability /= before;  // the sum of all that were kept
  std::size_t index = 0;
  if (uniform != nullptr) {
    double sum = kept[0];
    while (index + 1 < kept.size() && sum < *uniform) sum += kept[++index];
  }
  double confidence = kept[index];
  if (options.alg == "entropy") {
    confidence = 0;
    for (const double probability : kept) confidence += probability * portable_log(probability + kLogFloor);
  } else if (options.alg == "topk_margin") {
    confidence = kept[0] - (kept.size() > 1 ? kept[1] : 0.0);
  }
  return {row.ids[index], static_cast<float>(confidence)};
}

}  // namespace

DreamProposal::DreamProposal(Ids positions, const DreamOptions &options, std::int64_t vocabulary,
                             std::int64_t at_once, Draws &draws)
    : rows_(std::move(positions)),
      vocabulary_(vocabulary),
      at_once_(at_once),
      filtered_(options.top_k || (options.top_p && *options.top_p < 1)) {
  // Nothing precedes position 0, which keeps its own row.
  for (std::int64_t &row : rows_) row = std::max<std::int64_t>(row - 1, 0);
  request_.all_rows = false;
  request_.rows = rows_;
  if (options.temperature > 0) {
    request_.temperature = static_cast<float>(options.temperature);
    if (filtered_)
      uniform_ = draws.uniform(static_cast<std::int64_t>(rows_.size()));
    else
      request_.gumbel = draws.gumbel(1.0f);
  }
  if (filtered_)
    request_.top_k = std::min(options.top_k.value_or(kCandidates), vocabulary);
  else if (options.alg == "topk_margin")
    request_.top_k = std::min<std::int64_t>(2, vocabulary);
}

void DreamProposal::take(HeadResult &&answer, const DreamOptions &options) {
  if (!filtered_) return take_statistics(std::move(answer), options);
  if (request_.logits) return take_scores(answer, options);
  take_candidates(std::move(answer), options);
}

void DreamProposal::take_statistics(HeadResult &&answer, const DreamOptions &options) {
  const bool sampled = request_.gumbel.has_value();
  proposal_.tokens = std::move(sampled ? answer.sample : answer.argmax);
  if (options.alg == "entropy") {
    for (const float value : answer.entropy) proposal_.confidence.push_back(-static_cast<double>(value));
  } else if (options.alg == "topk_margin") {
    const auto width = static_cast<std::size_t>(request_.top_k);
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      const float *z = answer.top_z.data() + r * width;
      const float first = portable_exp(z[0] - answer.log_z[r]);
      const float lead = first - (width > 1 ? portable_exp(z[1] - answer.log_z[r]) : 0.0f);
      proposal_.confidence.push_back(static_cast<double>(lead));
    }
  } else if (sampled) {
    proposal_.confidence.assign(answer.sample_prob.begin(), answer.sample_prob.end());
  } else {
    for (const float others : answer.others) {
      const double probability = 1 / (1 + static_cast<double>(others));
      // In float32, as in the authors' script.
      proposal_.confidence.push_back(static_cast<double>(static_cast<float>(probability)));
    }
  }
  complete_ = true;
}

void DreamProposal::take_candidates(HeadResult &&answer, const DreamOptions &options) {
  const auto width = static_cast<std::size_t>(request_.top_k);
  const bool all = options.top_k || request_.top_k == vocabulary_ || !options.top_p;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const Candidates row{answer.top_ids.data() + r * width,
                         probabilities_of(answer.top_z.data() + r * width, width, answer.log_z[r])};
    const auto [token, confidence] = draw(row, uniform_.empty() ? nullptr : &uniform_[r], options);
    proposal_.tokens.push_back(token);
    proposal_.confidence.push_back(static_cast<double>(confidence));
    if (!all && total(row.probabilities.data(), request_.top_k) <= *options.top_p)
      unresolved_.push_back(static_cast<std::int64_t>(r));
  }
  log_z_ = std::move(answer.log_z);
  request_scores();
}

void DreamProposal::request_scores() {
  complete_ = resolved_ == unresolved_.size();
  const std::size_t stop = std::min(unresolved_.size(), resolved_ + static_cast<std::size_t>(at_once_));
  request_.rows.clear();
  for (std::size_t i = resolved_; i < stop; ++i)
    request_.rows.push_back(rows_[static_cast<std::size_t>(unresolved_[i])]);
  request_.top_k = 0;
  request_.logits = true;
}

void DreamProposal::take_scores(const HeadResult &answer, const DreamOptions &options) {
  const auto width = static_cast<std::size_t>(vocabulary_);
  for (std::size_t i = 0; i < request_.rows.size(); ++i) {
    const auto r = static_cast<std::size_t>(unresolved_[resolved_++]);
    const float *z = answer.logits.data() + i * width;
    const Ids order = most_confident(std::vector<float>(z, z + width), vocabulary_);
    std::vector<float> sorted(width);
    for (std::size_t k = 0; k < width; ++k) sorted[k] = z[order[k]];
    const Candidates row{order.data(), probabilities_of(sorted.data(), width, log_z_[r])};
    const auto [token, confidence] = draw(row, uniform_.empty() ? nullptr : &uniform_[r], options);
    proposal_.tokens[r] = token;
    proposal_.confidence[r] = static_cast<double>(confidence);
  }
  request_scores();
}

}  // namespace edgekit
