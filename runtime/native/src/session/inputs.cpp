#include "session/inputs.h"

#include <algorithm>
#include <cmath>

namespace edgekit {
namespace {

// Hides a key; finite, so that a row of which all is hidden gives a number.
constexpr float kMasked = -1e30f;

}  // namespace

PassInputs::PassInputs(const Model &model) : model_(model), tables_(model.ropes.size()) {}

void PassInputs::set_positions(const std::vector<std::int64_t> &positions) {
  if (positions == positions_) return;
  ++version_;
  positions_.clear();  // until all of it is there
  const std::int64_t count = static_cast<std::int64_t>(positions.size());
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    const Rope &rope = model_.ropes[i];
    const std::vector<float> &frequencies = rope.inverse_frequency;
    const std::int64_t width = static_cast<std::int64_t>(frequencies.size());
    Tables &own = tables_[i];
    own.cos = own.memory.floats(count * rope.floats_per_position());
    own.sin = own.cos + count * width;
    own.query_scale = rope.beta == 0 ? nullptr : own.sin + count * width;
    for (std::int64_t t = 0; t < count; ++t) {
      for (std::int64_t j = 0; j < width; ++j) {
        const float position = static_cast<float>(positions[static_cast<std::size_t>(t)]);
        const float angle = position * frequencies[static_cast<std::size_t>(j)];
        // In double: float versions of these functions differ between systems.
        own.cos[t * width + j] = static_cast<float>(std::cos(static_cast<double>(angle)));
        own.sin[t * width + j] = static_cast<float>(std::sin(static_cast<double>(angle)));
      }
      if (own.query_scale == nullptr) continue;
      const std::int64_t periods = positions[static_cast<std::size_t>(t)] / rope.period;
      own.query_scale[t] = static_cast<float>(1 + rope.beta * std::log1p(static_cast<double>(periods)));
    }
  }
  positions_ = positions;
}

void PassInputs::set_adapter(const std::vector<float> &factors) {
  if (factors == adapter_) return;
  ++version_;
  adapter_ = factors;
}

const float *PassInputs::text_mask(std::size_t segment, std::int64_t window, std::int64_t block,
                                   const std::vector<std::int64_t> &queries, const std::vector<std::int64_t> &keys) {
  Mask &own = masks_[{segment, window}];
  if (own.block != block || own.queries != queries || own.keys != keys) {
    ++version_;
    own.queries.clear();
    own.hides = false;
    float *mask = own.memory.floats(static_cast<std::int64_t>(queries.size() * keys.size()));
    const auto count = static_cast<std::int64_t>(queries.size());
    for (std::int64_t row = 0; row < count; ++row) {
      const std::int64_t query = queries[static_cast<std::size_t>(row)];
      const std::int64_t stop = std::min(count, row + block - row % block);
      const std::int64_t last = *std::max_element(queries.begin() + (row - row % block), queries.begin() + stop);
      for (const std::int64_t key : keys) {
        const bool hidden = key > last || (window != 0 && query - key >= window);
        own.hides = own.hides || hidden;
        *mask++ = hidden ? kMasked : 0.0f;
      }
    }
    own.block = block;
    own.queries = queries;
    own.keys = keys;
  }
  return own.hides ? own.memory.data() : nullptr;
}

}  // namespace edgekit
