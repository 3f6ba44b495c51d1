// What a pass gives to every layer besides weights: rotation tables and masks.
#ifndef EDGEKIT_SESSION_INPUTS_H
#define EDGEKIT_SESSION_INPUTS_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "flash_file.h"
#include "session/model.h"

namespace edgekit {

// Floats that are allocated when they are first needed, and again when more are. Contents are lost then.
class FloatBuffer {
 public:
  float *floats(std::int64_t count);
  float *data() const noexcept { return reinterpret_cast<float *>(memory_.data()); }

 private:
  AlignedMemory memory_;
};

// Kept as long as positions stay the same: the steps on one canvas share them.
class PassInputs {
 public:
  explicit PassInputs(const Model &model);

  // Absolute positions of all rows of the pass.
  void set_positions(const std::vector<std::int64_t> &positions);

  // [rows, frequencies] of Model::ropes[rope].
  const float *cos(std::size_t rope) { return tables_[rope].cos; }
  const float *sin(std::size_t rope) { return tables_[rope].sin; }

  // Additive mask [queries, keys] for queries that see what is not behind them and, with a window, not too far back, by
  // the positions of both. Null where nothing is hidden. Layers of equal window share that of a segment.
  const float *causal_mask(std::size_t segment, std::int64_t window, const std::vector<std::int64_t> &queries,
                           const std::vector<std::int64_t> &keys);

 private:
  struct Tables {
    FloatBuffer memory;
    float *cos = nullptr, *sin = nullptr;
  };
  struct Mask {
    FloatBuffer memory;
    std::vector<std::int64_t> queries, keys;  // of what it holds
    bool hides = false;
  };

  const Model &model_;
  std::vector<Tables> tables_;
  std::map<std::pair<std::size_t, std::int64_t>, Mask> masks_;  // by segment and window
  std::vector<std::int64_t> positions_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_INPUTS_H
