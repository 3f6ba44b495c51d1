#include "sampling/dream_proposal.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "sampling/acceptance.h"
#include "sampling/portable.h"
#include "sampling/roles.h"
#include "sampling/schedule.h"
#include "sampling/token_draw.h"

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

// A token of a row, and what its filtered distribution says.
struct Drawn {
  std::int64_t token = 0;
  double probability = 0, best_probability = 0;
  double order = 0;  // sum p * log(p)
  double margin = 0;

  float confidence(const std::string &alg) const {
    return static_cast<float>(alg == "entropy" ? order : alg == "topk_margin" ? margin : probability);
  }
};

// Filters, renormalises and draws; the candidates are already limited by top_k. Without `uniform` the best token is
// taken, otherwise the first whose cumulative probability reaches it.
Drawn draw(const Candidates &row, const double *uniform, const DreamOptions &options) {
  const std::vector<double> kept = nucleus(row.probabilities, options.top_p);
  const std::size_t index = uniform == nullptr ? 0 : drawn_index(kept, *uniform);
  Drawn drawn{row.ids[index], kept[index], kept[0], 0, kept[0] - (kept.size() > 1 ? kept[1] : 0.0)};
  for (const double probability : kept) drawn.order += probability * portable_log(probability + kLogFloor);
  return drawn;
}

// Of row `r`, which may have been there.
void take_row(Proposal &proposal, std::size_t r, const Drawn &drawn, std::int64_t best, const DreamOptions &options) {
  const auto put = [&](auto &values, auto value) {
    if (values.size() <= r) values.resize(r + 1);
    values[r] = value;
  };
  put(proposal.tokens, drawn.token);
  put(proposal.confidence, static_cast<double>(drawn.confidence(options.alg)));
  if (!options.rules.any()) return;
  put(proposal.probability, drawn.probability);
  put(proposal.best, best);
  put(proposal.best_probability, drawn.best_probability);
  put(proposal.entropy, std::max(0.0, -drawn.order));
  put(proposal.margin, drawn.margin);
}

}  // namespace

DreamProposal::DreamProposal(Ids positions, const DreamOptions &options, std::int64_t vocabulary,
                             std::int64_t at_once, Draws &draws)
    : rows_(std::move(positions)),
      vocabulary_(vocabulary),
      at_once_(at_once),
      filtered_(options.top_k || (options.top_p && *options.top_p < 1)),
      gives_scores_(options.asks_again()) {
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
  request_.roles = options.order == "logic";
  if (filtered_)
    request_.top_k = std::min(options.top_k.value_or(kCandidates), vocabulary);
  else if (options.alg == "topk_margin" || options.rules.need_margin())
    request_.top_k = std::min<std::int64_t>(2, vocabulary);
}

void DreamProposal::take(HeadResult &&answer, const DreamOptions &options) {
  if (request_.roles) proposal_.roles = likeliest_roles(answer.roles);
  request_.roles = false;  // of the first pass
  if (!filtered_) return take_statistics(std::move(answer), options);
  if (asks_scores_) return take_scores(answer, options);
  take_candidates(std::move(answer), options);
}

void DreamProposal::take_statistics(HeadResult &&answer, const DreamOptions &options) {
  const bool sampled = request_.gumbel.has_value();
  if (options.rules.any()) {
    add_evidence(answer, proposal_);
    if (sampled)
      proposal_.probability.assign(answer.sample_prob.begin(), answer.sample_prob.end());
    else
      proposal_.probability = proposal_.best_probability;
  }
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
    take_row(proposal_, r, draw(row, uniform_.empty() ? nullptr : &uniform_[r], options), row.ids[0], options);
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
  request_.top_k = gives_scores_ ? 0 : vocabulary_;
  request_.logits = gives_scores_;
  asks_scores_ = true;
}

void DreamProposal::take_scores(const HeadResult &answer, const DreamOptions &options) {
  const auto width = static_cast<std::size_t>(vocabulary_);
  for (std::size_t i = 0; i < request_.rows.size(); ++i) {
    const auto r = static_cast<std::size_t>(unresolved_[resolved_++]);
    Ids order;
    std::vector<float> sorted(width);
    if (gives_scores_) {
      const float *z = answer.logits.data() + i * width;
      order = most_confident(std::vector<float>(z, z + width), vocabulary_);
      for (std::size_t k = 0; k < width; ++k) sorted[k] = z[order[k]];
    } else {
      const auto at = static_cast<std::ptrdiff_t>(i * width), stop = at + static_cast<std::ptrdiff_t>(width);
      order.assign(answer.top_ids.begin() + at, answer.top_ids.begin() + stop);
      sorted.assign(answer.top_z.begin() + at, answer.top_z.begin() + stop);
    }
    const Candidates row{order.data(), probabilities_of(sorted.data(), width, log_z_[r])};
    take_row(proposal_, r, draw(row, uniform_.empty() ? nullptr : &uniform_[r], options), row.ids[0], options);
  }
  request_scores();
}

}  // namespace edgekit
