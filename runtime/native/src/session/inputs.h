// What a pass gives to every layer besides weights: rotation tables and masks.
#ifndef EDGEKIT_SESSION_INPUTS_H
#define EDGEKIT_SESSION_INPUTS_H

#include <cstdint>
#include <map>
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

// Tables and masks for positions first..first+count, kept as long as those stay the same: the steps on one canvas
// share them.
class PassInputs {
 public:
  explicit PassInputs(const Model &model);

  void set_positions(std::int64_t first, std::int64_t count);

  // [count, frequencies] of Model::ropes[rope].
  const float *cos(std::size_t rope) { return tables_[rope].cos; }
  const float *sin(std::size_t rope) { return tables_[rope].sin; }

  // Additive mask [count, keys] for queries that see what is not behind them and, with a window, not too far back.
  // Keys count from absolute position `first_key` to the last position. Null where nothing is hidden.
  const float *causal_mask(std::int64_t first_key, std::int64_t window);

 private:
  struct Tables {
    FloatBuffer memory;
    float *cos = nullptr, *sin = nullptr;
  };
  struct Mask {
    FloatBuffer memory;
    std::int64_t first_key = -1;  // of what it holds; -1: nothing
  };

  const Model &model_;
  std::vector<Tables> tables_;
  std::map<std::int64_t, Mask> masks_;  // by window: layers of equal window keep equally many keys
  std::int64_t first_ = -1, count_ = 0;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_INPUTS_H
