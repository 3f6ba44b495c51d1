// What a screen draws of an answer while it resolves.
#ifndef EDGEKIT_TEXT_CANVAS_TEXT_H
#define EDGEKIT_TEXT_CANVAS_TEXT_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "edgekit.h"
#include "text/tokenizer.h"

namespace edgekit {

// See ek_canvas_fold; all arguments are checked.
std::vector<ek_canvas_cell> fold_event(const ek_canvas_cell *cells, std::size_t count, const ek_event &event,
                                       std::int64_t mask_token);

struct CanvasParts {
  std::string text;
  std::vector<ek_canvas_part> parts;
};

// See ek_canvas_draw. Throws what Tokenizer::decode does.
CanvasParts draw_cells(const Tokenizer &tokenizer, const ek_canvas_cell *cells, std::size_t count);

}  // namespace edgekit

#endif  // EDGEKIT_TEXT_CANVAS_TEXT_H
