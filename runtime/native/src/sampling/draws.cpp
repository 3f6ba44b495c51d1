#include "sampling/draws.h"

#include "kernels/noise.h"

namespace edgekit {

std::vector<std::int64_t> Draws::integers(std::int64_t high, std::int64_t count) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  philox_integers(seed_, draws_++, static_cast<std::uint64_t>(high), count, values.data());
  return values;
}

std::vector<double> Draws::uniform(std::int64_t count) {
  std::vector<double> values(static_cast<std::size_t>(count));
  philox_uniform(seed_, draws_++, count, values.data());
  return values;
}

GumbelDraw Draws::gumbel(float scale) {
  GumbelDraw draw;
  draw.seed = seed_;
  draw.draw = draws_++;
  draw.scale = scale;
  return draw;
}

}  // namespace edgekit
