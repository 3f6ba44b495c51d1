// LLaDA's proposals from full scores, for what a statistic of the scores cannot express: mixing two passes, and leaving
// tokens out of the softmax.
#ifndef EDGEKIT_SAMPLING_LLADA_SCORES_H
#define EDGEKIT_SAMPLING_LLADA_SCORES_H

#include <cstdint>
#include <optional>
#include <vector>

#include "sampling/options.h"
#include "sampling/passes.h"
#include "sampling/proposal.h"

namespace edgekit {

// For each of `rows` (indices into ids, whose first `prompt` are the prompt). Throws Error (EK_NOT_FINITE).
Proposal propose_from_scores(Passes &passes, const std::vector<std::int64_t> &ids, std::int64_t prompt,
                             const std::vector<std::int64_t> &rows, const LladaOptions &options,
                             const std::optional<GumbelDraw> &gumbel);

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_LLADA_SCORES_H
