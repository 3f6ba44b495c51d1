// A token and its confidence for each of some rows of a pass.
#ifndef EDGEKIT_SAMPLING_PROPOSAL_H
#define EDGEKIT_SAMPLING_PROPOSAL_H

#include <cstdint>
#include <vector>

namespace edgekit {

struct Proposal {
  std::vector<std::int64_t> tokens;
  std::vector<float> confidence;
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_PROPOSAL_H
