#include "sampling/events.h"

#include "error.h"

namespace edgekit {

Reporter::Reporter(const EventCallback &callback, Generation &generation)
    : callback_(callback), generation_(generation) {
  generation_ = Generation();
}

void Reporter::draft(std::int64_t canvas_index, std::int64_t step, std::int64_t start, const std::int64_t *ids,
                     const std::vector<std::uint8_t> &accepted) {
  generation_.draft.assign(ids, ids + accepted.size());
  generation_.draft_start = start;
  Event event;
  event.kind = EventKind::draft;
  event.canvas_index = canvas_index;
  event.step = step;
  event.start = start;
  event.ids = generation_.draft.data();
  event.count = static_cast<std::int64_t>(accepted.size());
  event.accepted = accepted.data();
  deliver(event);
}

void Reporter::committed(std::int64_t canvas_index, const std::int64_t *ids, std::int64_t count) {
  Event event;
  event.kind = EventKind::committed;
  event.canvas_index = canvas_index;
  event.start = static_cast<std::int64_t>(generation_.answer.size());
  event.ids = ids;
  event.count = count;
  generation_.answer.insert(generation_.answer.end(), ids, ids + count);
  deliver(event);
}

void Reporter::done() {
  if (!callback_) return;
  Event event;
  event.stats = &generation_.stats;
  callback_(event);
}

void Reporter::deliver(const Event &event) {
  if (!callback_) return;
  Event full = event;
  full.stats = &generation_.stats;
  if (callback_(full)) return;
  generation_.stats.finish_reason = FinishReason::cancelled;
  fail(EK_STOPPED, "the generation was stopped by its callback after ", generation_.stats.denoising_steps,
       " denoising steps; what was committed stays readable");
}

}  // namespace edgekit
