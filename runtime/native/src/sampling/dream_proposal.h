// Dream's proposals: tokens and confidences from the head's statistics, or from its best candidates where a nucleus or
// top-k filter shapes the distribution.
#ifndef EDGEKIT_SAMPLING_DREAM_PROPOSAL_H
#define EDGEKIT_SAMPLING_DREAM_PROPOSAL_H

#include <cstdint>
#include <vector>

#include "sampling/ask.h"
#include "sampling/draws.h"
#include "sampling/options.h"
#include "sampling/proposal.h"

namespace edgekit {

// The passes of one denoising step: one, and head passes on it for the full scores of rows whose nucleus is larger than
// the candidates.
class DreamProposal {
 public:
  // For each of `positions` (indices into the canvas). Row j - 1 of the scores predicts position j.
  // Full scores are asked for at most `at_once` rows; of passes that cannot give them, as that many candidates.
  DreamProposal(std::vector<std::int64_t> positions, const DreamOptions &options, std::int64_t vocabulary,
                std::int64_t at_once, Draws &draws);

  // What to ask for next, unless it is complete.
  const HeadRequest &request() const { return request_; }
  bool complete() const { return complete_; }

  // The answer to that.
  void take(HeadResult &&answer, const DreamOptions &options);

  Proposal &proposal() { return proposal_; }

 private:
  void take_statistics(HeadResult &&answer, const DreamOptions &options);
  void take_candidates(HeadResult &&answer, const DreamOptions &options);
  void take_scores(const HeadResult &answer, const DreamOptions &options);
  void request_scores();

  HeadRequest request_;
  std::vector<std::int64_t> rows_;
  std::vector<double> uniform_;  // a draw for each row; empty: the best token
  std::int64_t vocabulary_, at_once_;
  bool filtered_, gives_scores_, complete_ = false;
  Proposal proposal_;

  // Rows whose candidates do not hold their nucleus, as indices into rows_, and how many of them are done.
  std::vector<std::int64_t> unresolved_;
  std::size_t resolved_ = 0;
  bool asks_scores_ = false;
  std::vector<float> log_z_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_DREAM_PROPOSAL_H
