// A token and its confidence for each of some rows of a pass.
#ifndef EDGEKIT_SAMPLING_PROPOSAL_H
#define EDGEKIT_SAMPLING_PROPOSAL_H

#include <cstdint>
#include <vector>

namespace edgekit {

// What a confidence is, is the procedure's own matter: higher ones go first.
struct Proposal {
  std::vector<std::int64_t> tokens;
  std::vector<double> confidence;
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_PROPOSAL_H
