// Rows of the embedding table, in the forms in which bundles store them.
#ifndef EDGEKIT_SESSION_TABLE_ROWS_H
#define EDGEKIT_SESSION_TABLE_ROWS_H

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "session/bundle.h"
#include "session/weight_store.h"

namespace edgekit {

// How a tile stores its rows: bfloat16; 8-bit codes with a scale each; or such codes, four to a word, with scales in groups
// (MLX's, whose biases follow from the scales).
struct TableForm {
  // Throws Error (EK_MALFORMED_FILE) for a run that holds no table of this size.
  TableForm(const Run &run, std::int64_t rows, std::int64_t columns);

  enum class Kind { bfloat16, codes, groups } kind = Kind::bfloat16;
  std::uint64_t codes = 0, scales = 0;          // offsets in the run
  std::size_t row_bytes = 0, scale_bytes = 0;   // of a row's codes, and of its scales
  std::int64_t columns = 0, groups = 1;
  bool half_scales = false;

  // One row in float32 from its stored bytes.
  void widen_row(const std::uint8_t *stored, const std::uint8_t *stored_scales, float *out) const;
};

// From memory where the table is pinned, else read one by one.
class EmbeddingRows {
 public:
  EmbeddingRows(const Bundle &bundle, const WeightStore &weights);

  // Scaled embeddings [count, hidden] of valid ids. Throws Error.
  void gather(const std::int64_t *ids, std::int64_t count, float *out);

 private:
  void row(std::int64_t id, float *out);

  const Bundle &bundle_;
  const WeightStore &weights_;
  std::vector<TableForm> forms_;  // of the tiles
  std::vector<std::uint8_t> stored_, scales_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_TABLE_ROWS_H
