#include "sampling/dream_proposal.h"

#include <algorithm>
#include <tuple>
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

Proposal propose_unfiltered(Passes &passes, const Ids &ids, const Ids &rows, const DreamOptions &options,
                            Draws &draws) {
  const bool sampled = options.temperature > 0, margin = options.alg == "topk_margin";
  HeadRequest request;
  request.all_rows = false;
  request.rows = rows;
  if (sampled) {
    request.temperature = static_cast<float>(options.temperature);
    request.gumbel = draws.gumbel(1.0f);
  }
  request.top_k = margin ? std::min<std::int64_t>(2, passes.vocabulary()) : 0;
  HeadResult result = passes.run(ids, request);
  Proposal proposal;
  proposal.tokens = std::move(sampled ? result.sample : result.argmax);
  if (options.alg == "entropy") {
    proposal.confidence = std::move(result.entropy);
    for (float &value : proposal.confidence) value = -value;
  } else if (margin) {
    const auto width = static_cast<std::size_t>(request.top_k);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const float *z = result.top_z.data() + r * width;
      const float first = portable_exp(z[0] - result.log_z[r]);
      proposal.confidence.push_back(first - (width > 1 ? portable_exp(z[1] - result.log_z[r]) : 0.0f));
    }
  } else {
    proposal.confidence = std::move(sampled ? result.sample_prob : result.argmax_prob);
  }
  return proposal;
}

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

// Draws again for rows whose nucleus is larger than the candidates, from their full scores.
void resolve(Passes &passes, const Ids &rows, const Ids &unresolved, const std::vector<float> &log_z,
             const std::vector<double> &uniform, float temperature, const DreamOptions &options, Proposal &proposal) {
  const auto width = static_cast<std::size_t>(passes.vocabulary());
  const auto at_once = static_cast<std::size_t>(passes.rows_at_once());
  for (std::size_t start = 0; start < unresolved.size(); start += at_once) {
    const std::size_t count = std::min(at_once, unresolved.size() - start);
    std::vector<float> scores(count * width);
    HeadRequest request;
    request.all_rows = false;
    for (std::size_t i = start; i < start + count; ++i)
      request.rows.push_back(rows[static_cast<std::size_t>(unresolved[i])]);
    request.temperature = temperature;
    request.logits = scores.data();
    passes.again(request);
    for (std::size_t i = 0; i < count; ++i) {
      const auto r = static_cast<std::size_t>(unresolved[start + i]);
      std::vector<float> z(scores.begin() + static_cast<std::ptrdiff_t>(i * width),
                           scores.begin() + static_cast<std::ptrdiff_t>((i + 1) * width));
      const Ids order = most_confident(z, passes.vocabulary());
      std::vector<float> sorted(width);
      for (std::size_t k = 0; k < width; ++k) sorted[k] = z[static_cast<std::size_t>(order[k])];
      const Candidates row{order.data(), probabilities_of(sorted.data(), width, log_z[r])};
      std::tie(proposal.tokens[r], proposal.confidence[r]) =
          draw(row, uniform.empty() ? nullptr : &uniform[r], options);
    }
  }
}

Proposal propose_filtered(Passes &passes, const Ids &ids, const Ids &rows, const DreamOptions &options, Draws &draws) {
  const bool sampled = options.temperature > 0;
  const std::int64_t candidates = std::min(options.top_k.value_or(kCandidates), passes.vocabulary());
  std::vector<double> uniform;
  if (sampled) uniform = draws.uniform(static_cast<std::int64_t>(rows.size()));
  HeadRequest request;
  request.all_rows = false;
  request.rows = rows;
  if (sampled) request.temperature = static_cast<float>(options.temperature);
  request.top_k = candidates;
  const HeadResult result = passes.run(ids, request);

  const auto width = static_cast<std::size_t>(candidates);
  const bool complete = options.top_k || candidates == passes.vocabulary() || !options.top_p;
  Proposal proposal;
  Ids unresolved;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const Candidates row{result.top_ids.data() + r * width,
                         probabilities_of(result.top_z.data() + r * width, width, result.log_z[r])};
    const auto [token, confidence] = draw(row, sampled ? &uniform[r] : nullptr, options);
    proposal.tokens.push_back(token);
    proposal.confidence.push_back(confidence);
    if (!complete && total(row.probabilities.data(), candidates) <= *options.top_p)
      unresolved.push_back(static_cast<std::int64_t>(r));
  }
  if (!unresolved.empty())
    resolve(passes, rows, unresolved, result.log_z, uniform, request.temperature, options, proposal);
  return proposal;
}

}  // namespace

Proposal propose(Passes &passes, const Ids &ids, const Ids &positions, const DreamOptions &options, Draws &draws) {
  // Nothing precedes position 0, which keeps its own row.
  Ids rows = positions;
  for (std::int64_t &row : rows) row = std::max<std::int64_t>(row - 1, 0);
  const bool filtered = options.top_k || (options.top_p && *options.top_p < 1);
  return filtered ? propose_filtered(passes, ids, rows, options, draws)
                  : propose_unfiltered(passes, ids, rows, options, draws);
}

}  // namespace edgekit
