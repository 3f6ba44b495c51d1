// What a sampler asks of whoever drives it.
#ifndef EDGEKIT_SAMPLING_ASK_H
#define EDGEKIT_SAMPLING_ASK_H

#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "kernels/head.h"

namespace edgekit {

// What to compute from z = logits / temperature for some rows of the canvas.
struct HeadRequest {
  bool all_rows = true;
  std::vector<std::int64_t> rows;  // unless all_rows; results come in this order
  std::int64_t expected_rows = 0;  // where all_rows: what the pass must have; 0: any number
  float temperature = 1.0f;
  std::optional<GumbelDraw> gumbel;  // over the requested rows, not the canvas
  bool soft = false;
  std::int64_t top_k = 0;
  bool roles = false;  // scores of the logical roles, by the role head
  bool logits = false;
  float *logits_to = nullptr;  // [rows, vocabulary] that they go to; null: into the result

  // Of a canvas of `positions`.
  std::int64_t row_count(std::int64_t positions) const {
    return all_rows ? positions : static_cast<std::int64_t>(rows.size());
  }
};

// Rows that a segment of a pass sees before its own: of kept positions, or of an earlier segment.
struct SeenRows {
  std::int64_t segment = -1;  // -1: kept positions
  std::int64_t first = 0, count = 0;
};

// Rows of a pass that see the same.
struct AskSegment {
  std::vector<std::int64_t> ids;
  std::int64_t at = 0;     // rows before its own, and the position of the first, unless `positions` are given
  std::vector<std::int64_t> positions;  // of its rows; empty: those from `at` on
  std::int64_t block = 0;  // of text: rows that see each other and what is before them, 1: causal; 0: a canvas
  std::optional<std::vector<SeenRows>> seen;  // none given: what is kept before `at`
  std::int64_t adapter = 0;  // that its rows are computed with; 0: what the session has for passes
  bool keep = false;       // its keys and values are kept from `at` on, in place of those that are there
  std::int64_t keep_count = 0;  // of its rows, the first, whose are kept; 0: all
  std::optional<HeadRequest> request;

  std::int64_t rows() const { return request->row_count(static_cast<std::int64_t>(ids.size())); }
  std::vector<std::int64_t> row_positions() const {
    if (!positions.empty()) return positions;
    std::vector<std::int64_t> following(ids.size());
    std::iota(following.begin(), following.end(), at);
    return following;
  }
};

enum class AskKind {
  forget,     // all text
  encode,     // `ids`, as text behind what is encoded; they include what was `kept`
  denoise,    // `ids` behind the prefix: the answer is what `request` wants
  project,    // the last denoise, of `ids`: the answer to another `request`
  draft,      // tell: the state after a denoising step, nothing in it is final
  committed,  // tell: final tokens
  done,       // tell: the end, which stays
  pass,       // `segments`: the answers are those of all that have a request
  crop        // what is kept at and behind `prefix_length`, and what was `kept`: forget it
};

struct Ask {
  AskKind kind = AskKind::forget;
  std::vector<std::int64_t> ids;  // of the pass; draft: the best guess; committed: the tokens
  HeadRequest request;            // denoise, project
  std::vector<float> soft;        // denoise: [ids, hidden], the last step's soft embedding, or empty
  std::vector<AskSegment> segments;  // pass
  bool caches = false;               // pass: the first segment is a canvas that is kept, which is no text
  // encode, denoise, project, pass: positions that are encoded before it, and the number of their text. crop: those that
  // stay, and their number.
  std::int64_t prefix_length = 0;
  std::uint64_t text = 0;

  // Where a draft or committed tokens belong.
  std::int64_t canvas_index = 0;
  std::int64_t step = 0;               // draft: counts from 1 within each canvas or block
  std::int64_t start = 0;              // place of ids[0] in the answer
  std::vector<std::uint8_t> accepted;  // draft [ids]: 1 where this step accepted or committed

  std::int64_t text_count = 0;         // committed: of ids, those that are text; what follows them pads a canvas

  // told: text of a prefix that is final and not encoded, which a conversation goes on behind.
  std::vector<std::int64_t> kept;

  // Of the answer to a pass.
  std::int64_t rows() const { return request.row_count(static_cast<std::int64_t>(ids.size())); }
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_ASK_H
