// The functions of edgekit.h around engines: sessions over them, and plans.
#include <memory>
#include <string>
#include <utility>

#include "abi_guard.h"
#include "abi_session.h"
#include "session/plugged_engine.h"
#include "session/reservation.h"

namespace edgekit {
namespace {

MakeEngine engine_of(const ek_engine *given, const SessionOptions &options) {
  if (given == nullptr) return native_engine(options);
  const ek_engine table = read_struct<ek_engine>(given, ek_engine{}, "ek_engine");
  if (table.reserved != 0) fail(EK_INVALID_ARGUMENT, "ek_engine.reserved is ", table.reserved, "; set it to 0");
  return [table](Bundle &bundle) { return std::make_unique<PluggedEngine>(bundle, table); };
}

ek_memory_plan plan_of(const SessionPlan &plan) {
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
  made.units = static_cast<std::int64_t>(plan.units);
  return made;
}

std::string path_of(const char *bundle) {
  if (bundle == nullptr) fail(EK_INVALID_ARGUMENT, "the path of the bundle is null");
  return bundle;
}

}  // namespace
}  // namespace edgekit

using namespace edgekit;

ek_status ek_session_open_engine(const char *bundle, const ek_session_options *options, const ek_engine *engine,
                                 ek_session **session) noexcept {
  return guarded([&] {
    if (session == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the session");
    *session = nullptr;
    const SessionOptions wanted = session_options_of(options);
    *session = std::make_unique<ek_session>(path_of(bundle), wanted, engine_of(engine, wanted)).release();
  });
}

ek_status ek_session_get_plan(ek_session *session, ek_memory_plan *plan) noexcept {
  return guarded([&] { write_struct(plan, plan_of(required(session).session.plan()), "ek_memory_plan"); });
}

ek_status ek_session_get_unit(ek_session *session, int64_t index, ek_unit_plan *unit) noexcept {
  return guarded([&] {
    ek_session &own = required(session);
    if (index < 0) fail(EK_INVALID_ARGUMENT, "unit ", index, "; they count from 0");
    PlannedUnit found = own.session.unit(static_cast<std::size_t>(index));
    own.unit_name = std::move(found.name);
    own.unit_group = std::move(found.group);
    ek_unit_plan made{};
    made.pinned = found.pinned;
    made.name = own.unit_name.c_str();
    made.group = own.unit_group.c_str();
    made.bytes = found.bytes;
    write_struct(unit, made, "ek_unit_plan");
  });
}

ek_status ek_plan_session(const char *bundle, const ek_session_options *options, const ek_engine *engine,
                          uint64_t process, ek_memory_plan *plan) noexcept {
  return guarded([&] {
    const SessionOptions wanted = session_options_of(options);
    SessionPlan made;
    try {
      plan_session(path_of(bundle), wanted, engine_of(engine, wanted),
                   process == UINT64_MAX ? Reservation::process_bytes() : process, made);
    } catch (const BudgetError &) {
      write_struct(plan, plan_of(made), "ek_memory_plan");
      throw;
    }
    write_struct(plan, plan_of(made), "ek_memory_plan");
  });
}
