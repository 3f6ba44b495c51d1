// The `model` and `layers` sections of a manifest, checked (see runtime/bundle.py).
#ifndef EDGEKIT_SESSION_MODEL_H
#define EDGEKIT_SESSION_MODEL_H

#include <cstdint>
#include <string>
#include <vector>

#include "json.h"

namespace edgekit {

struct LayerInfo {
  std::string program;
  std::string run;                   // or package
  std::vector<std::string> experts;  // runs
  // Of a layer with experts whose run is a package: the core's program of what follows its products, and its run.
  std::string mixture_program, mixture_run;
  std::size_t slot = 0;              // place in the package: consecutive layers of one are one call
  std::int64_t kv_heads = 0, head_dim = 0;
  std::size_t rope = 0;     // place in Model::ropes
  std::int64_t window = 0;  // 0: none
};

// Tile i holds the tokens from starts[i] to the next start, or to `rows`.
struct TableInfo {
  std::vector<std::string> runs;
  std::vector<std::int64_t> starts;
  std::int64_t rows = 0;
  int bits = 0;

  std::int64_t stop(std::size_t tile) const { return tile + 1 < starts.size() ? starts[tile + 1] : rows; }
  std::size_t tile_of(std::int64_t token) const;
};

struct Rope {
  std::string name;
  std::vector<float> inverse_frequency;
  double beta = 0;           // of a factor for rotated queries, 1 + beta * log1p(floor(position / period)); 0: none
  std::int64_t period = 1;

  // Of cos, sin and that factor.
  std::int64_t floats_per_position() const {
    return 2 * static_cast<std::int64_t>(inverse_frequency.size()) + (beta == 0 ? 0 : 1);
  }
};

struct Model {
  std::int64_t hidden = 0, vocabulary = 0;
  float embedding_scale = 1.0f;
  bool causal_prefix = false, self_conditioning = false;
  std::int64_t prefix_block = 1;   // of a prefix: rows of text that see each other; 1: a row sees what is not behind it
  bool shift_logits = false;       // the scores at position j predict token j + 1
  std::int64_t canvas_length = 0;  // 0: any
  std::int64_t max_positions = 0;  // 0: unknown
  std::int64_t adapters = 0;       // low-rank ones that segments of a pass may ask for
  std::int64_t role_width = 0;     // of what lies between the two products of the role head; 0: there is none
  std::string role_file;
  std::vector<Rope> ropes;
  TableInfo embedding;
  bool tied = true;  // the head is the embedding
  TableInfo head;
  std::vector<LayerInfo> layers;

  const TableInfo &scores() const { return tied ? embedding : head; }
};

// Throws Error (EK_INVALID_ARGUMENT) for an adapter that the model does not have, by number; 0 is none.
void check_adapter(const Model &model, std::int64_t adapter);

// `root` is the manifest, `where` its path for messages; `packaged`: weights but the embedding lie in packages. Throws
// Error (EK_MALFORMED_FILE).
Model parse_model(const Json &root, const std::string &where, bool packaged);

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_MODEL_H
