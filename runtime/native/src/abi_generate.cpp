// ek_generate of edgekit.h: what a caller gives is checked and settled here, a sampler runs it.
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "abi_generation.h"
#include "abi_guard.h"
#include "abi_session.h"
#include "edgekit.h"
#include "sampling/generate.h"
#include "session/model.h"

namespace edgekit {
namespace {

using Clock = std::chrono::steady_clock;

// Of a call that began at `called`. Samplers have no clock: their state, which is saved, is the same every time.
ek_generation_statistics measured(const Stats &stats, std::int32_t reason, Clock::time_point called) {
  ek_generation_statistics made = statistics_of(stats, reason);
  made.seconds = std::chrono::duration<double>(Clock::now() - called).count();
  return made;
}

EventCallback event_callback(ek_event_callback callback, void *user_data, Clock::time_point called) {
  if (callback == nullptr) return {};
  return [=](const Ask &event, const Stats &stats) {
    const bool done = event.kind == AskKind::done, draft = event.kind == AskKind::draft;
    const ek_generation_statistics statistics =
        measured(stats, done ? finish_reason(stats.finish_reason) : EK_FINISH_NONE, called);
    ek_event made{};
    made.struct_size = sizeof made;
    made.kind = done ? EK_EVENT_DONE : draft ? EK_EVENT_DRAFT : EK_EVENT_COMMITTED;
    made.canvas_index = event.canvas_index;
    made.step = event.step;
    made.start = event.start;
    made.ids = done ? nullptr : event.ids.data();
    made.count = static_cast<std::int64_t>(event.ids.size());
    made.accepted = draft ? event.accepted.data() : nullptr;
    made.statistics = &statistics;
    return callback(&made, user_data) == 0;
  };
}

void report(ek_generation_statistics *statistics, const ek_generation_statistics &made) {
  if (statistics != nullptr) write_struct(statistics, made, "ek_generation_statistics");
}

}  // namespace
}  // namespace edgekit

using namespace edgekit;

ek_status ek_generate(ek_session *session, const int64_t *prompt, int64_t count, const ek_generate_options *options,
                      ek_event_callback callback, void *user_data, ek_generation_statistics *statistics) noexcept {
  return guarded([&] {
    const Clock::time_point called = Clock::now();
    const Entry entry(session);
    Session &running = *entry;
    Sequence &sequence = running.sequence();
    const Model &model = running.model();
    const GenerationFacts facts{running.sampler(), model.canvas_length, model.max_positions};
    std::unique_ptr<Sampler> own;
    try {
      report(statistics, statistics_of(Stats(), EK_FINISH_NONE));
      const ek_generate_options given =
          read_struct<ek_generate_options>(options, EK_GENERATE_OPTIONS_INIT, "ek_generate_options");
      const SamplerOptions chosen = options_of(given, facts);
      const std::vector<std::int64_t> ids = prompt_of(prompt, count);
      SamplerModel about = model_of(sequence);
      const Lengths needed = checked_lengths(chosen, facts, about, count);
      running.make_room(needed.canvas, needed.prefix);
      own = sampler(chosen, std::move(about), ids, given.seed);
      run(*own, sequence, event_callback(callback, user_data, called));
    } catch (...) {
      running.idle();
      const Stats reached = own ? own->stats() : Stats();
      const bool stopped = reached.finish_reason == FinishReason::cancelled;
      report(statistics, measured(reached, stopped ? EK_FINISH_STOPPED : EK_FINISH_NONE, called));
      throw;
    }
    running.idle();
    report(statistics, measured(own->stats(), finish_reason(own->stats().finish_reason), called));
  });
}
