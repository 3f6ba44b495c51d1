// A token and what is known of it for each of some rows of a pass.
#ifndef EDGEKIT_SAMPLING_PROPOSAL_H
#define EDGEKIT_SAMPLING_PROPOSAL_H

#include <cstddef>
#include <cstdint>
#include <vector>

namespace edgekit {

// What a confidence is, is the procedure's own matter: higher ones go first.
struct Proposal {
  std::vector<std::int64_t> tokens;
  std::vector<double> confidence;
  std::vector<std::int64_t> roles;  // where the order goes by them

  // What acceptance rules look at, where there are any.
  std::vector<double> probability;      // of the token; -infinity for one that goes last
  std::vector<std::int64_t> best;       // the likeliest token, which a draw need not give
  std::vector<double> best_probability;
  std::vector<double> entropy;  // nats
  std::vector<double> margin;   // p1 - p2, where a rule needs it

  // Of the first rows alone.
  Proposal first(std::int64_t count) const {
    Proposal part = *this;
    const auto size = static_cast<std::size_t>(count);
    part.tokens.resize(size);
    part.confidence.resize(size);
    for (auto *values : {&part.probability, &part.best_probability, &part.entropy, &part.margin}) {
      if (!values->empty()) values->resize(size);
    }
    for (auto *values : {&part.best, &part.roles}) {
      if (!values->empty()) values->resize(size);
    }
    return part;
  }
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_PROPOSAL_H
