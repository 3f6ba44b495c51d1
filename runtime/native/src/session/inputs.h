// What a pass gives to every layer besides weights: rotation tables, factors of adapters, and masks.
#ifndef EDGEKIT_SESSION_INPUTS_H
#define EDGEKIT_SESSION_INPUTS_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "session/engine_memory.h"
#include "session/model.h"

namespace edgekit {

// Kept as long as positions stay the same: the steps on one canvas share them. They lie in the session's memory: an engine
// with one of its own copies them once for these steps.
class PassInputs {
 public:
  explicit PassInputs(const Model &model);

  // Absolute positions of all rows of the pass.
  void set_positions(const std::vector<std::int64_t> &positions);

  // [rows, frequencies] of Model::ropes[rope].
  const float *cos(std::size_t rope) { return tables_[rope].cos; }
  const float *sin(std::size_t rope) { return tables_[rope].sin; }

  // [rows] factors for rotated queries, null where the rope has none.
  const float *query_scale(std::size_t rope) { return tables_[rope].query_scale; }

  // Factors [rows] for what adapters add to products, of a model that has such.
  void set_adapter(const std::vector<float> &factors);
  const float *adapter() { return adapter_.empty() ? nullptr : adapter_.data(); }

  // Additive mask [queries, keys] for queries that see what is not behind their block of so many of them and, with a
  // window, not too far back, by the positions of both. Null where nothing is hidden. Layers of equal window share that of a
  // segment.
  const float *text_mask(std::size_t segment, std::int64_t window, std::int64_t block,
                         const std::vector<std::int64_t> &queries, const std::vector<std::int64_t> &keys);

  // Another number whenever one of them was written; see ek_layers_call.inputs.
  std::uint64_t version() const noexcept { return version_; }

 private:
  struct Tables {
    FloatBuffer memory;
    float *cos = nullptr, *sin = nullptr, *query_scale = nullptr;
  };
  struct Mask {
    FloatBuffer memory;
    std::int64_t block = 0;  // of what it holds, as are these
    std::vector<std::int64_t> queries, keys;
    bool hides = false;
  };

  const Model &model_;
  std::vector<Tables> tables_;
  std::map<std::pair<std::size_t, std::int64_t>, Mask> masks_;  // by segment and window
  std::vector<std::int64_t> positions_;
  std::vector<float> adapter_;
  std::uint64_t version_ = 1;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_INPUTS_H
