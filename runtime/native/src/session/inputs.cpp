#include "session/inputs.h"

#include <cmath>
#include <cstring>
#include <unordered_map>

#include "kernels/float_ops.h"

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

void EmbeddingRows::row(std::int64_t id, float *out) {
  const Model &model = bundle_.model();
  const std::size_t place = model.embedding.tile_of(id);
  const BundleTile &tile = bundle_.embedding()[place];
  const std::int64_t hidden = model.hidden, row = id - tile.first;
  const int bits = tile.table.form.bits;
  const std::size_t bytes = static_cast<std::size_t>(hidden) * (bits == 16 ? 2 : 1);
  const std::uint64_t codes = tile.table.codes + static_cast<std::uint64_t>(row) * bytes;
  const std::uint64_t scales = tile.table.scales + static_cast<std::uint64_t>(row) * sizeof(float);
  float scale = 1.0f;
  stored_.resize(bytes);
  if (const std::uint8_t *data = weights_.pinned(*tile.run)) {
    std::memcpy(stored_.data(), data + codes, bytes);
    if (bits == 8) std::memcpy(&scale, data + scales, sizeof scale);
  } else {
    FlashFile &file = bundle_.file();
    file.read_bytes(tile.run->offset + codes, bytes, stored_.data());
    if (bits == 8) file.read_bytes(tile.run->offset + scales, sizeof scale, &scale);
  }
  if (bits == 16) {
    widen(reinterpret_cast<const std::uint16_t *>(stored_.data()), hidden, out);
    for (std::int64_t i = 0; i < hidden; ++i) out[i] *= model.embedding_scale;
    return;
  }
  for (std::int64_t i = 0; i < hidden; ++i) {
    out[i] = static_cast<float>(static_cast<int>(stored_[static_cast<std::size_t>(i)]) - 128) * scale;
    out[i] *= model.embedding_scale;
  }
}

void EmbeddingRows::gather(const std::int64_t *ids, std::int64_t count, float *out) {
  const std::int64_t hidden = bundle_.model().hidden;
  std::unordered_map<std::int64_t, std::int64_t> known;  // a masked canvas is one token many times
  for (std::int64_t i = 0; i < count; ++i) {
    const auto [found, is_new] = known.emplace(ids[i], i);
    if (is_new) {
      row(ids[i], out + i * hidden);
    } else {
      std::memcpy(out + i * hidden, out + found->second * hidden, sizeof(float) * static_cast<std::size_t>(hidden));
    }
  }
}

}  // namespace edgekit
