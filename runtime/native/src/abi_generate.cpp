// ek_generate and ek_model_generate of edgekit.h: what a caller gives is checked and settled here, a sampler runs it.
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "abi_caller_model.h"
#include "abi_generation.h"
#include "abi_guard.h"
#include "abi_session.h"
#include "edgekit.h"
#include "error.h"
#include "json.h"
#include "sampling/generate.h"
#include "session/model.h"

namespace edgekit {
namespace {

// The model of a generation: its passes, and what decides about options and lengths.
struct GenerationModel {
  Denoiser &denoiser;
  GenerationFacts facts;
  std::function<void(const Lengths &)> check_lengths;  // throws Error for more than it has memory for
  std::function<void()> idle;                          // the generation is over
};

EventCallback event_callback(ek_event_callback callback, void *user_data) {
  if (callback == nullptr) return {};
  return [=](const Ask &event, const Stats &stats) {
    const bool done = event.kind == AskKind::done, draft = event.kind == AskKind::draft;
    const ek_generation_statistics statistics =
        statistics_of(stats, done ? finish_reason(stats.finish_reason) : EK_FINISH_NONE);
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

// What a caller gives to a generation over any model.
struct Call {
  const std::int64_t *prompt;
  std::int64_t count;
  const ek_generate_options *options;
  ek_event_callback callback;
  void *user_data;
  ek_generation_statistics *statistics;

  void report(const Stats &stats, std::int32_t reason) const {
    if (statistics != nullptr) write_struct(statistics, statistics_of(stats, reason), "ek_generation_statistics");
  }
};

void run(const Call &call, const GenerationModel &model) {
  std::unique_ptr<Sampler> own;
  try {
    call.report(Stats(), EK_FINISH_NONE);
    const ek_generate_options given =
        read_struct<ek_generate_options>(call.options, EK_GENERATE_OPTIONS_INIT, "ek_generate_options");
    const SamplerOptions chosen = options_of(given, model.facts);
    const std::vector<std::int64_t> ids = prompt_of(call.prompt, call.count);
    SamplerModel about = model_of(model.denoiser);
    model.check_lengths(checked_lengths(chosen, model.facts, about, call.count));
    own = sampler(chosen, std::move(about), ids, given.seed);
    run(*own, model.denoiser, event_callback(call.callback, call.user_data));
  } catch (...) {
    model.idle();
    const Stats reached = own ? own->stats() : Stats();
    call.report(reached, reached.finish_reason == FinishReason::cancelled ? EK_FINISH_STOPPED : EK_FINISH_NONE);
    throw;
  }
  model.idle();
  call.report(own->stats(), finish_reason(own->stats().finish_reason));
}

}  // namespace
}  // namespace edgekit

using namespace edgekit;

ek_status ek_generate(ek_session *session, const int64_t *prompt, int64_t count, const ek_generate_options *options,
                      ek_event_callback callback, void *user_data, ek_generation_statistics *statistics) noexcept {
  return guarded([&] {
    Session &own = required(session).session;
    run({prompt, count, options, callback, user_data, statistics},
        {own, {own.sampler(), own.model().canvas_length, own.model().max_positions},
         [&](const Lengths &needed) { own.check_lengths(needed.canvas, needed.prefix); }, [&] { own.idle(); }});
  });
}

ek_status ek_model_generate(const ek_model *model, const int64_t *prompt, int64_t count,
                            const ek_generate_options *options, ek_event_callback callback, void *user_data,
                            ek_generation_statistics *statistics) noexcept {
  return guarded([&] {
    const Call call{prompt, count, options, callback, user_data, statistics};
    call.report(Stats(), EK_FINISH_NONE);
    if (model == nullptr) fail(EK_INVALID_ARGUMENT, "the model is null");
    const ek_model own = read_struct<ek_model>(model, EK_MODEL_INIT, "ek_model");
    if (own.sampler == nullptr) {
      fail(EK_INVALID_ARGUMENT, "ek_model.sampler is null; give that section of the manifest");
    }
    CallerModel denoiser(own);
    const Json sampler = Json::parse(own.sampler, "ek_model.sampler");
    run(call, {denoiser, {sampler, own.canvas_length, own.max_positions}, [](const Lengths &) {}, [] {}});
  });
}
