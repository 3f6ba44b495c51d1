#include "session/prefix.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace edgekit {
namespace {

// A layer with a window has room for two chunks behind it: what is kept moves to the front once per several chunks.
std::int64_t capacity_for(const KvGeometry &layer, std::int64_t positions, std::int64_t chunk) {
  return layer.window == 0 ? positions : std::min(positions, layer.window - 1 + 2 * chunk);
}

std::uint64_t bytes_for(const KvGeometry &layer, std::int64_t capacity) {
  return 2 * sizeof(float) * static_cast<std::uint64_t>(layer.kv_heads * layer.head_dim * capacity);
}

}  // namespace

PrefixCache::PrefixCache(std::vector<KvGeometry> layers, std::int64_t positions, std::int64_t chunk)
    : geometry_(std::move(layers)), layers_(geometry_.size()) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::int64_t capacity = capacity_for(geometry_[i], positions, chunk);
    if (capacity > 0) reserve(i, capacity);
  }
}

std::uint64_t PrefixCache::bytes(const std::vector<KvGeometry> &layers, std::int64_t positions, std::int64_t chunk) {
  std::uint64_t total = 0;
  for (const KvGeometry &layer : layers) total += bytes_for(layer, capacity_for(layer, positions, chunk));
  return total;
}

void PrefixCache::clear() {
  length_ = 0;
  for (Layer &layer : layers_) layer.start = layer.length = 0;
}

PrefixView PrefixCache::at(std::size_t layer, std::int64_t start, std::int64_t count) const {
  const KvGeometry &shape = geometry_[layer];
  const Layer &own = layers_[layer];
  const std::int64_t head = own.capacity * shape.head_dim;
  PrefixView view;
  view.length = count;
  float *data = reinterpret_cast<float *>(own.memory.data());
  for (Strided *side : {&view.keys, &view.values}) {
    side->data = data == nullptr ? nullptr : data + start * shape.head_dim;
    const std::int64_t lengths[] = {1, shape.kv_heads, count, shape.head_dim};
    const std::int64_t strides[] = {shape.kv_heads * head, head, shape.head_dim, 1};
    std::copy(lengths, lengths + 4, side->shape);
    std::copy(strides, strides + 4, side->stride);
    if (data != nullptr) data += shape.kv_heads * head;
  }
  return view;
}

PrefixView PrefixCache::view(std::size_t layer) const {
  const Layer &own = layers_[layer];
  PrefixView view = at(layer, own.start, own.length);
  view.first = length_ - own.length;
  return view;
}

void PrefixCache::reserve(std::size_t layer, std::int64_t capacity) {
  const KvGeometry &shape = geometry_[layer];
  Layer &own = layers_[layer];
  Layer grown;
  grown.memory = AlignedMemory(bytes_for(shape, capacity));
  grown.capacity = capacity;
  grown.length = own.length;
  const std::int64_t row = shape.head_dim;
  const float *from = reinterpret_cast<const float *>(own.memory.data());
  float *to = reinterpret_cast<float *>(grown.memory.data());
  for (std::int64_t head = 0; own.length > 0 && head < 2 * shape.kv_heads; ++head) {
    std::memcpy(to + head * capacity * row, from + (head * own.capacity + own.start) * row,
                sizeof(float) * static_cast<std::size_t>(own.length * row));
  }
  own = std::move(grown);
}

PrefixView PrefixCache::next(std::size_t layer, std::int64_t count) {
  Layer &own = layers_[layer];
  const KvGeometry &shape = geometry_[layer];
  if (own.length + count > own.capacity) {
    // Doubling keeps the copies of a prefix that nobody announced in proportion to its length.
    reserve(layer, std::max(own.length + count, shape.window == 0 ? 2 * own.capacity : shape.window - 1 + 2 * count));
  } else if (own.start + own.length + count > own.capacity) {
    float *data = reinterpret_cast<float *>(own.memory.data());
    const std::int64_t row = shape.head_dim;
    for (std::int64_t head = 0; head < 2 * shape.kv_heads; ++head) {
      float *first = data + head * own.capacity * row;
      std::memmove(first, first + own.start * row, sizeof(float) * static_cast<std::size_t>(own.length * row));
    }
    own.start = 0;
  }
  return at(layer, own.start + own.length, count);
}

void PrefixCache::append(std::size_t layer, std::int64_t count) {
  Layer &own = layers_[layer];
  const std::int64_t window = geometry_[layer].window;
  const std::int64_t all = own.length + count, keep = window == 0 ? all : std::min(all, window - 1);
  own.start += all - keep;
  own.length = keep;
}

}  // namespace edgekit
