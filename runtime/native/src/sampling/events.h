// What a denoising loop reports while it runs, as runtime/sampling/events.py.
#ifndef EDGEKIT_SAMPLING_EVENTS_H
#define EDGEKIT_SAMPLING_EVENTS_H

#include <cstdint>
#include <functional>
#include <vector>

namespace edgekit {

enum class FinishReason { eos, length, cancelled };

// Counters of one generation; see the Python class for what each counts.
struct Stats {
  std::int64_t denoising_steps = 0;
  std::int64_t forwards = 0;
  std::int64_t projections = 0;
  std::int64_t prefills = 0;
  std::int64_t committed_tokens = 0;
  std::int64_t canvases = 0;
  FinishReason finish_reason = FinishReason::length;
};

enum class EventKind { draft, committed, done };

// Pointers are valid during the callback only.
struct Event {
  EventKind kind = EventKind::done;
  std::int64_t canvas_index = 0;
  std::int64_t step = 0;                  // draft: counts from 1 within each canvas or block
  std::int64_t start = 0;                 // place of ids[0] in the answer
  const std::int64_t *ids = nullptr;      // draft: the best guess; committed: final tokens
  std::int64_t count = 0;                 // of ids
  const std::uint8_t *accepted = nullptr; // draft [count]: 1 where this step accepted or committed
  const Stats *stats = nullptr;           // counters so far; final with done
};

// Returns whether to go on. Ignored for done.
using EventCallback = std::function<bool(const Event &)>;

// The state of a generation. It stays readable when the loop ends by an Error: what was committed until then, the
// last draft and the counters. A stop by the callback sets the finish reason to cancelled.
struct Generation {
  std::vector<std::int64_t> answer;  // every committed token
  std::vector<std::int64_t> draft;   // ids of the last draft
  std::int64_t draft_start = 0;
  Stats stats;
};

// Brings a loop's events into the state and to the callback, which may be empty.
class Reporter {
 public:
  // `generation` starts afresh.
  Reporter(const EventCallback &callback, Generation &generation);

  Stats &stats() { return generation_.stats; }

  // Throw Error (EK_STOPPED) when the callback asks to stop.
  void draft(std::int64_t canvas_index, std::int64_t step, std::int64_t start, const std::int64_t *ids,
             const std::vector<std::uint8_t> &accepted);
  void committed(std::int64_t canvas_index, const std::int64_t *ids, std::int64_t count);

  void done();

 private:
  void deliver(const Event &event);

  const EventCallback &callback_;
  Generation &generation_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_EVENTS_H
