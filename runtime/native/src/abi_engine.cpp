// The functions of edgekit.h around engines: sessions over them, and plans.
#include <memory>
#include <string>
#include <utility>

#include "abi_guard.h"
#include "abi_session.h"
#include "packages/plugged_executor.h"
#include "session/plugged_engine.h"
#include "session/reservation.h"

namespace edgekit {
namespace {

MakeEngine engine_of(const ek_engine *given, const SessionOptions &options, bool planning = false) {
  if (given == nullptr) return core_engine(options, planning);
  const ek_engine table = read_struct<ek_engine>(given, ek_engine{}, "ek_engine");
  if (table.reserved != 0) fail(EK_INVALID_ARGUMENT, "ek_engine.reserved is ", table.reserved, "; set it to 0");
  return [table](Bundle &bundle) { return std::make_unique<PluggedEngine>(bundle, table); };
}

MakeEngine packages_of(const ek_executor *given, const SessionOptions &options) {
  if (given == nullptr) fail(EK_INVALID_ARGUMENT, "the executor is null");
  const ek_executor table = read_struct<ek_executor>(given, ek_executor{}, "ek_executor");
  if (table.reserved != 0) fail(EK_INVALID_ARGUMENT, "ek_executor.reserved is ", table.reserved, "; set it to 0");
  return [table, threads = engine_threads(options)](Bundle &bundle) { return plugged_packages(bundle, threads, table); };
}

ek_memory_plan memory_of(const SessionPlan &plan) {
  ek_memory_plan made{};
  made.process = plan.needs.process;
  made.prefix = plan.needs.prefix;
  made.activations = plan.needs.activations;
  made.scratch = plan.needs.scratch;
  made.head = plan.needs.head;
  made.allowance = plan.needs.allowance;
  made.pinned = plan.pinned;
  made.ring = plan.ring;
  made.streamed = plan.streamed;
  made.weights = plan.weights;
  made.least_memory = plan.least_memory;
  made.most_sequences = plan.most_sequences;
  made.kept = plan.kept;
  made.units = static_cast<std::int64_t>(plan.units.size());
  return made;
}

std::string path_of(const char *bundle) {
  if (bundle == nullptr) fail(EK_INVALID_ARGUMENT, "the path of the bundle is null");
  return bundle;
}

// `make` gives, for the options, what makes the engine.
template <typename Make>
ek_status open_session(const char *bundle, const ek_session_options *options, ek_session **session, Make make) {
  return guarded([&] {
    if (session == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the session");
    *session = nullptr;
    const SessionOptions wanted = session_options_of(options);
    *session = std::make_unique<ek_session>(path_of(bundle), wanted, make(wanted)).release();
  });
}

}  // namespace
}  // namespace edgekit

struct ek_plan {
  edgekit::SessionPlan plan;
};

namespace edgekit {
namespace {

const SessionPlan &required(const ek_plan *plan) {
  if (plan == nullptr) fail(EK_INVALID_ARGUMENT, "the plan is null");
  return plan->plan;
}

ek_plan *&place(ek_plan **plan) {
  if (plan == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the plan");
  *plan = nullptr;
  return *plan;
}

}  // namespace
}  // namespace edgekit

using namespace edgekit;

ek_status ek_session_open_engine(const char *bundle, const ek_session_options *options, const ek_engine *engine,
                                 ek_session **session) noexcept {
  return open_session(bundle, options, session, [&](const SessionOptions &wanted) { return engine_of(engine, wanted); });
}

ek_status ek_session_open_packages(const char *bundle, const ek_session_options *options, const ek_executor *executor,
                                   ek_session **session) noexcept {
  return open_session(bundle, options, session,
                      [&](const SessionOptions &wanted) { return packages_of(executor, wanted); });
}

ek_status ek_session_get_plan(ek_session *session, ek_plan **plan) noexcept {
  return guarded([&] { place(plan) = new ek_plan{required(session).session.plan()}; });
}

ek_status ek_plan_session(const char *bundle, const ek_session_options *options, const ek_engine *engine,
                          uint64_t process, ek_plan **plan) noexcept {
  return guarded([&] {
    ek_plan *&made = place(plan);
    const SessionOptions wanted = session_options_of(options);
    const std::uint64_t held = process == UINT64_MAX ? Reservation::process_bytes() : process;
    made = new ek_plan{plan_session(path_of(bundle), wanted, engine_of(engine, wanted, true), held)};
  });
}

void ek_plan_close(ek_plan *plan) noexcept { delete plan; }

ek_status ek_plan_get_memory(ek_plan *plan, ek_memory_plan *memory) noexcept {
  return guarded([&] { write_struct(memory, memory_of(required(plan)), "ek_memory_plan"); });
}

ek_status ek_plan_get_unit(ek_plan *plan, int64_t index, ek_unit_plan *unit) noexcept {
  return guarded([&] {
    const std::vector<PlannedUnit> &units = required(plan).units;
    if (index < 0 || static_cast<std::uint64_t>(index) >= units.size()) {
      fail(EK_INVALID_ARGUMENT, "unit ", index, " of a plan of ", units.size());
    }
    const PlannedUnit &found = units[static_cast<std::size_t>(index)];
    ek_unit_plan made{};
    made.pinned = found.pinned;
    made.name = found.name.c_str();
    made.group = found.group.c_str();
    made.bytes = found.bytes;
    made.kept = found.kept;
    write_struct(unit, made, "ek_unit_plan");
  });
}
