#include "session/inputs.h"

#include <cmath>

namespace edgekit {
namespace {

// Hides a key; finite, so that a row of which all is hidden gives a number.
constexpr float kMasked = -1e30f;

}  // namespace

float *FloatBuffer::floats(std::int64_t count) {
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(count);
  if (bytes > memory_.size()) {
    memory_ = AlignedMemory();  // not both at a time
    memory_ = AlignedMemory(bytes);
  }
  return data();
}

PassInputs::PassInputs(const Model &model) : model_(model), tables_(model.ropes.size()) {}

void PassInputs::set_positions(std::int64_t first, std::int64_t count) {
  if (first == first_ && count == count_) return;
  first_ = -1;  // until all of it is there
  for (auto &[window, mask] : masks_) mask.first_key = -1;
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    const std::vector<float> &frequencies = model_.ropes[i].inverse_frequency;
    const std::int64_t width = static_cast<std::int64_t>(frequencies.size());
    Tables &own = tables_[i];
    own.cos = own.memory.floats(2 * count * width);
    own.sin = own.cos + count * width;
    for (std::int64_t t = 0; t < count; ++t) {
      for (std::int64_t j = 0; j < width; ++j) {
        const float angle = static_cast<float>(first + t) * frequencies[static_cast<std::size_t>(j)];
        // In double: float versions of these functions differ between systems.
        own.cos[t * width + j] = static_cast<float>(std::cos(static_cast<double>(angle)));
        own.sin[t * width + j] = static_cast<float>(std::sin(static_cast<double>(angle)));
      }
    }
  }
  first_ = first;
  count_ = count;
}

const float *PassInputs::causal_mask(std::int64_t first_key, std::int64_t window) {
  if (count_ == 1 && (window == 0 || first_ - first_key < window)) return nullptr;
  Mask &own = masks_[window];
  if (own.first_key == first_key) return own.memory.data();
  const std::int64_t keys = first_ + count_ - first_key;
  own.first_key = -1;
  float *mask = own.memory.floats(count_ * keys);
  for (std::int64_t t = 0; t < count_; ++t) {
    for (std::int64_t j = 0; j < keys; ++j) {
      const std::int64_t distance = first_ + t - (first_key + j);
      const bool hidden = distance < 0 || (window != 0 && distance >= window);
      mask[t * keys + j] = hidden ? kMasked : 0.0f;
    }
  }
  own.first_key = first_key;
  return mask;
}

}  // namespace edgekit
