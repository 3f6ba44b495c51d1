// The role head of a bundle: a small network over hidden states that tells the logical role of the token that each predicts
// (LogicDiff, arXiv 2603.26771). It is the same for every engine: computed here, in float32, from weights that stay in memory.
//
// Its file, which the manifest lists and names in model.role_head, is float32, little-endian, without a header:
//
//     down [hidden, width], down_bias [width], up [width, kRoles], up_bias [kRoles]
//
// and the scores of a row are relu(x @ down + down_bias) @ up + up_bias.
#ifndef EDGEKIT_SESSION_ROLE_HEAD_H
#define EDGEKIT_SESSION_ROLE_HEAD_H

#include <cstdint>
#include <vector>

#include "session/bundle.h"

namespace edgekit {

class RoleHead {
 public:
  // Reads the file of a bundle that has one. Throws Error: those of BundleFolder::read, EK_MALFORMED_FILE for another size or
  // weights that are not finite.
  explicit RoleHead(const Bundle &bundle);

  // Of the weights and of a request for so many rows. 0 where the model has none.
  static std::uint64_t bytes(const Model &model, std::int64_t rows);

  // Scores [rows, kRoles] of x [rows, hidden]. Sums are in the order of the columns, so that every processor gives the same.
  std::vector<float> scores(const float *x, std::int64_t rows) const;

 private:
  std::int64_t hidden_, width_;
  std::vector<float> weights_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_ROLE_HEAD_H
