// The counters of one generation.
#ifndef EDGEKIT_SAMPLING_STATISTICS_H
#define EDGEKIT_SAMPLING_STATISTICS_H

#include <cstdint>

namespace edgekit {

enum class FinishReason { eos, length, cancelled };

struct Stats {
  std::int64_t denoising_steps = 0;   // whose pass ran
  std::int64_t forwards = 0;          // denoising passes: one a step, two with guidance, fewer where steps are drafted
  std::int64_t projections = 0;       // further passes of the vocabulary head on the same hidden states
  std::int64_t prefills = 0;          // causal passes that encoded text
  std::int64_t committed_tokens = 0;  // final ones, padding not counted
  std::int64_t canvases = 0;          // canvases or blocks begun
  std::int64_t rows = 0;              // positions that all these passes computed
  FinishReason finish_reason = FinishReason::length;
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_STATISTICS_H
