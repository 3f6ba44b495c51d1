// Dream's proposals: tokens and confidences from the head's statistics, or from its best candidates where a nucleus or
// top-k filter shapes the distribution.
#ifndef EDGEKIT_SAMPLING_DREAM_PROPOSAL_H
#define EDGEKIT_SAMPLING_DREAM_PROPOSAL_H

#include <cstdint>
#include <vector>

#include "sampling/draws.h"
#include "sampling/options.h"
#include "sampling/passes.h"
#include "sampling/proposal.h"

namespace edgekit {

// For each of `positions` (indices into ids). Row j - 1 of the scores predicts position j.
Proposal propose(Passes &passes, const std::vector<std::int64_t> &ids, const std::vector<std::int64_t> &positions,
                 const DreamOptions &options, Draws &draws);

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_DREAM_PROPOSAL_H
