// Tokens that are drawn from a filtered distribution.
#ifndef EDGEKIT_SAMPLING_TOKEN_DRAW_H
#define EDGEKIT_SAMPLING_TOKEN_DRAW_H

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sampling/ask.h"
#include "sampling/draws.h"

namespace edgekit {

// Of probabilities, the largest first: those that stay, so that they sum to 1. A token stays while the probability before it
// does not exceed `top_p`.
std::vector<double> nucleus(const std::vector<float> &probabilities, std::optional<double> top_p);

// The first index whose cumulative probability reaches `uniform`.
std::size_t drawn_index(const std::vector<double> &probabilities, double uniform);

// A draw for each row of a request: temperature, the `top_k` likeliest, of these the nucleus, as SDAR's
// `sample_with_temperature_topk_topp`. Without a filter it is Gumbel noise on the scores.
class TokenDraw {
 public:
  TokenDraw() = default;
  // 0 and none: no filter. `noise` scales the noise of a draw without one, where it and not the temperature is to.
  TokenDraw(std::optional<std::int64_t> top_k, std::optional<double> top_p, double temperature, bool noise = false);

  // Adds to a request for `rows` rows what the draw needs; a temperature of 0 needs nothing.
  void ask(HeadRequest &request, std::int64_t rows, std::int64_t vocabulary, Draws &draws);
  // Fills `sample`, `sample_prob` and `entropy` of the answer, as if it had been drawn there.
  void take(HeadResult &answer) const;

 private:
  bool filters() const { return top_k_ || top_p_; }

  std::optional<std::int64_t> top_k_;
  std::optional<double> top_p_;
  double temperature_ = 0;
  bool noise_ = false;
  std::vector<double> uniform_;  // of the rows that were asked for
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_TOKEN_DRAW_H
