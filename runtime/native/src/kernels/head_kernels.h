// The part of the vocabulary head that every instruction set has a version of; all give the same bits.
#ifndef EDGEKIT_KERNELS_HEAD_KERNELS_H
#define EDGEKIT_KERNELS_HEAD_KERNELS_H

#include <cstdint>

namespace edgekit {

// Scores come in multiples of this many, whatever the width of a vector: sums run in as many lanes everywhere.
constexpr std::int64_t kHeadLanes = 16;

// How z follows from a logit: softcap * tanh(logit / softcap) unless softcap is 0, then / temperature.
struct HeadScale {
  float softcap;
  float temperature;
};

// Scores z [rows rounded up to kHeadLanes, tokens], whose rows are `stride` floats apart, and the noise of the same
// tokens, [tokens, rows] with kHeadLanes more floats that are finite. `tokens` is a multiple of kHeadLanes.
struct NoisyScores {
  const float *z;
  std::int64_t stride;
  const float *noise;
  float noise_scale;
  std::int64_t rows;
  std::int64_t tokens;
};

// For every row, rounded up to kHeadLanes, the best z + noise_scale * noise so far, the number of its token (a float
// below 2^24), and z there.
struct NoisyBest {
  float *score;
  float *token;
  float *z;
};

struct HeadKernels {
  const char *name;
  // Turns logits into z in place.
  void (*scale)(const HeadScale &scale, float *z, std::int64_t count);
  // The largest of `count` numbers; NaN are passed over, -infinity if there is nothing else.
  float (*largest)(const float *z, std::int64_t count);
  // sums[0] = sum of e = exp(z - top), sums[1] = sum of (z - top) * e, where e is 0 for z = -infinity. `keep` puts e
  // in place of z. Returns whether an e is not 0.
  bool (*exponentials)(float *z, std::int64_t count, float top, bool keep, double *sums);
  // Makes 0 of the smallest e, which together are at most `most`: of those up to `each`, and up to the largest of some
  // multiples of it that allows that. `most` is at least count * each. Returns whether an e is not 0; a NaN is not small.
  bool (*drop)(float *e, std::int64_t count, float each, float most);
  // Joins tokens first, first + 1, ... to `best`; the lower token stays where scores are equal.
  void (*sample)(const NoisyScores &scores, std::int64_t first, const NoisyBest &best);
};

extern const HeadKernels kHeadScalar;
#if defined(__x86_64__) || defined(_M_X64)
extern const HeadKernels kHeadAvx2, kHeadAvx512;
#elif defined(__aarch64__) || defined(_M_ARM64)
extern const HeadKernels kHeadNeon;
#endif

}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_HEAD_KERNELS_H
