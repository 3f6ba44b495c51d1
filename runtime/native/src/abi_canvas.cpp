// The ek_canvas_ functions of edgekit.h.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "abi_guard.h"
#include "abi_text.h"
#include "edgekit.h"
#include "error.h"
#include "text/canvas_text.h"

using namespace edgekit;

namespace {

// These throw Error (EK_INVALID_ARGUMENT).
void check_cells(const ek_canvas_cell *cells, int64_t count) {
  if (count < 0 || (cells == nullptr && count != 0)) fail(EK_INVALID_ARGUMENT, "cells are null, or count is ", count);
  for (int64_t i = 0; i < count; ++i) {
    const ek_canvas_cell &cell = cells[i];
    if (cell.state < EK_CELL_OPEN || cell.state > EK_CELL_COMMITTED || cell.reserved != 0) {
      fail(EK_INVALID_ARGUMENT, "cell ", i, " has the state ", cell.state, ", reserved ", cell.reserved,
           "; give cells as ek_canvas_fold makes them");
    }
    if (cell.place < 0 || (i > 0 && cell.place <= cells[i - 1].place)) {
      fail(EK_INVALID_ARGUMENT, "cell ", i, " is at place ", cell.place, "; give cells in order of their places");
    }
  }
}

ek_event checked(const ek_event *event) {
  const ek_event given = read_struct(place(event, "event"), ek_event{}, "ek_event");
  if (given.kind != EK_EVENT_DRAFT && given.kind != EK_EVENT_COMMITTED) return given;
  const int64_t most = std::numeric_limits<int64_t>::max();
  if (given.count < 0 || (given.ids == nullptr && given.count != 0)) {
    fail(EK_INVALID_ARGUMENT, "ids of the event are null, or its count is ", given.count);
  }
  if (given.start < 0 || given.start > most - given.count) {
    fail(EK_INVALID_ARGUMENT, "the event has ", given.count, " tokens at place ", given.start);
  }
  if (given.kind == EK_EVENT_DRAFT && given.accepted == nullptr && given.count != 0) {
    fail(EK_INVALID_ARGUMENT, "the draft does not say which tokens were accepted; give event->accepted");
  }
  return given;
}

}  // namespace

ek_status ek_canvas_fold(const ek_canvas_cell *cells, int64_t count, const ek_event *event, int64_t mask_token,
                         ek_canvas_cell *folded, int64_t capacity, int64_t *folded_count) noexcept {
  return guarded([&] {
    check_cells(cells, count);
    const ek_event given = checked(event);
    place(folded_count, "folded_count");
    const std::vector<ek_canvas_cell> made = fold_event(cells, static_cast<std::size_t>(count), given, mask_token);
    *folded_count = static_cast<int64_t>(made.size());
    if (folded == nullptr) return;
    if (capacity < *folded_count) {
      fail(EK_BUFFER_TOO_SMALL, "the canvas has ", *folded_count, " cells, the buffer ", capacity);
    }
    std::copy(made.begin(), made.end(), folded);
  });
}

ek_status ek_canvas_draw(ek_text *text, const ek_canvas_cell *cells, int64_t count, char *buffer, uint64_t capacity,
                         uint64_t *size, ek_canvas_part *parts, int64_t part_capacity, int64_t *part_count) noexcept {
  return guarded([&] {
    const Tokenizer &tokenizer = opened(text);
    check_cells(cells, count);
    place(size, "size");
    place(part_count, "part_count");
    const CanvasParts made = draw_cells(tokenizer, cells, static_cast<std::size_t>(count));
    *part_count = static_cast<int64_t>(made.parts.size());
    *size = made.text.size();
    if (parts != nullptr && part_capacity < *part_count) {
      fail(EK_BUFFER_TOO_SMALL, "the canvas has ", *part_count, " parts, the buffer ", part_capacity);
    }
    fill(made.text, "the canvas", buffer, capacity, *size);
    if (parts != nullptr) std::copy(made.parts.begin(), made.parts.end(), parts);
  });
}
