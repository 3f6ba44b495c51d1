// The random numbers of one generation: kernels/noise.h with its draws counted.
#ifndef EDGEKIT_SAMPLING_DRAWS_H
#define EDGEKIT_SAMPLING_DRAWS_H

#include <cstdint>
#include <vector>

#include "kernels/head.h"

namespace edgekit {

// Every call is a new draw.
class Draws {
 public:
  // `made` draws were made before.
  explicit Draws(std::uint64_t seed, std::uint64_t made = 0) : seed_(seed), draws_(made) {}

  std::uint64_t seed() const { return seed_; }
  std::uint64_t made() const { return draws_; }

  // Uniform over 0..high-1.
  std::vector<std::int64_t> integers(std::int64_t high, std::int64_t count);

  // Uniform over (0, 1).
  std::vector<double> uniform(std::int64_t count);

  // Noise that whoever scores the vocabulary produces.
  GumbelDraw gumbel(float scale);

 private:
  std::uint64_t seed_;
  std::uint64_t draws_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_DRAWS_H
