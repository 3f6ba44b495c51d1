// Joins what an engine says of tiles of the vocabulary head, by the online softmax (arXiv 1805.02867).
#ifndef EDGEKIT_SESSION_HEAD_JOIN_H
#define EDGEKIT_SESSION_HEAD_JOIN_H

#include <cstdint>
#include <vector>

#include "kernels/head.h"
#include "kernels/head_candidates.h"
#include "sampling/ask.h"

namespace edgekit {

// One tile's results for R rows; see ek_tile_call. Arrays that were not asked for are empty.
struct TileResults {
  TileResults(std::int64_t rows, std::int64_t hidden, const HeadRequest &request);

  std::vector<float> largest;
  std::vector<std::int64_t> argmax;
  std::vector<float> sum_others, sum_z_others;
  std::vector<float> score;
  std::vector<std::int64_t> sample;
  std::vector<float> sample_z;
  std::vector<float> soft;  // [R, hidden]
  std::vector<float> z;     // [R, tokens] of the tile at hand, where the request needs it
};

// Tiles come in ascending order of tokens; ties keep the lower token.
class HeadJoin {
 public:
  HeadJoin(std::int64_t rows, std::int64_t hidden, std::int64_t vocabulary, const HeadRequest &request, float *logits);

  // Throws Error (EK_ENGINE_FAILED) for tokens that the tile does not have.
  void add(std::int64_t first, std::int64_t tokens, const TileResults &tile);

  HeadResult result();

  // What a join of this size holds at most, results of `tiles` tiles included.
  static std::uint64_t bytes(std::int64_t rows, std::int64_t hidden, std::int64_t tile_tokens, std::int64_t tiles,
                             bool soft, std::int64_t top_k);

 private:
  struct Row {
    double top;
    std::int64_t argmax = 0;
    // Over the tokens but the argmax, whose own term is 1: next to it small ones would be lost.
    double others = 0, z_others = 0;
    float score;
    std::int64_t sample = 0;
    float sample_z = 0;
  };

  const std::int64_t hidden_, vocabulary_, k_;
  const bool sampled_;
  float *const logits_;
  std::vector<Row> rows_;
  std::vector<float> soft_;
  HeadCandidates candidates_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_HEAD_JOIN_H
