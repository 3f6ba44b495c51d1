#include "session/session.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <sstream>
#include <unordered_set>
#include <utility>

#include "error.h"
#include "onnx/qnn_executor.h"
#include "packages/plugged_executor.h"
#include "session/engine_weights.h"
#include "session/native_engine.h"
#include "session/pass.h"
#include "session/process.h"
#include "session/session_state.h"
#include "tvm/tvm_engine.h"

namespace edgekit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxThreads = 1024;

SessionOptions checked(const SessionOptions &options) {
  if (options.positions < 0 || options.positions > kMaxPositions || options.canvas < 1 ||
      options.canvas > kMaxPositions) {
    fail(EK_INVALID_ARGUMENT, "a session for ", options.positions, " positions and a canvas of ", options.canvas,
         "; they must be 0..", kMaxPositions, " and 1..", kMaxPositions);
  }
  if (options.threads < 0 || options.threads > kMaxThreads) {
    fail(EK_INVALID_ARGUMENT, "threads is ", options.threads, "; use an integer from 1 to ", kMaxThreads,
         ", or 0 for every core");
  }
  if (options.cached < 0 || options.cached > kMaxPositions) {
    fail(EK_INVALID_ARGUMENT, "a session for ", options.cached, " cached positions; they must be 0..", kMaxPositions);
  }
  if (options.segments < 0 || options.segments > kMostSequences) {
    fail(EK_INVALID_ARGUMENT, "a session for ", options.segments, " segments of a pass; they must be 0..", kMostSequences);
  }
  if (options.sequences < 1 || options.sequences > kMostSequences) {
    fail(EK_INVALID_ARGUMENT, "a session for ", options.sequences, " sequences; they must be 1..", kMostSequences);
  }
  return options;
}

// As far as the bundle's packages go: a longer prefix needs no memory, because no function takes it.
SessionOptions checked(SessionOptions options, const Bundle &bundle) {
  check_adapter(bundle.model(), options.adapter);
  options.positions = std::min(checked(options).positions, bundle.longest_prefix());
  return options;
}

// The part of the flash file: weights in packages are opened by the engine.
ResidencyPlan in_flash(const Bundle &bundle, const ResidencyPlan &plan) {
  ResidencyPlan out = plan;
  if (!bundle.packaged()) return out;
  out.ring_bytes = flash_ring(bundle, plan);
  for (auto name = out.pinned.begin(); name != out.pinned.end();) {
    name = bundle.file().layout().index.count(*name) != 0 ? std::next(name) : out.pinned.erase(name);
  }
  return out;
}

SessionPlan plan_of(const Bundle &bundle, const Engine &engine, const MemoryNeeds &needs, const ResidencyPlan &plan,
                    const SessionOptions &options) {
  SessionPlan out;
  out.needs = needs;
  out.pinned = plan.pinned_bytes;
  out.ring = plan.ring_bytes;
  out.streamed = plan.streamed_bytes;
  out.kept = plan.kept_bytes;
  for (Unit &unit : weight_units(bundle)) {
    out.weights += unit.bytes;
    const bool pinned = plan.pinned.count(unit.name) != 0, kept = plan.kept.count(unit.name) != 0;
    out.units.push_back({std::move(unit.name), std::move(unit.group), unit.bytes, pinned, kept});
  }
  out.least_memory = least_budget(bundle, needs, options);
  const std::uint64_t machine = machine_memory();
  // What was asked for has room, whatever the process has taken since.
  if (options.memory_bytes != 0 || machine != 0)
    out.most_sequences = std::max(options.sequences, most_sequences(bundle, engine, options, needs.process, machine));
  return out;
}

// What a pass uses, in order, experts excluded: their order is decided when they are scheduled.
template <typename Unit, typename Chunk>
void visit(const Bundle &bundle, Pass pass, const Unit &unit, const Chunk &chunk) {
  if (pass == Pass::denoise && bundle.self_conditioning() != nullptr) unit(*bundle.self_conditioning());
  for (std::size_t i = 0; pass != Pass::head && i < bundle.chunks().size(); ++i) chunk(i);
  if (pass == Pass::denoise) unit(bundle.final());
  if (pass == Pass::prefill) return;
  for (const BundleTile &tile : bundle.scores()) unit(*tile.unit);
}

std::unique_ptr<Engine> packages_of(Bundle &bundle, int threads, bool planning) {
  if (planning) return planned_packages(bundle, threads);
  if (bundle.format() == qnn::kFormat) return qnn::engine(bundle, threads);
  fail(EK_UNSUPPORTED_BUNDLE, bundle.path(), ": packages of the format ", bundle.format(),
       " are run by a system's own runtime, which this call does not reach: open a bundle of the format native, or give ",
       "what runs them (C: ek_session_open_packages)");
}

}  // namespace

int engine_threads(const SessionOptions &options) {
  const int threads = checked(options).threads;
  return threads != 0 ? threads : usable_cores();
}

MakeEngine core_engine(const SessionOptions &options, bool planning) {
  return [count = engine_threads(options), planning](Bundle &bundle) -> std::unique_ptr<Engine> {
    if (bundle.format() == "tvm") return std::make_unique<TvmEngine>(bundle, bundle.take_programs(), count, planning);
    if (bundle.packaged() && bundle.format() != "native") return packages_of(bundle, count, planning);
    return std::make_unique<NativeEngine>(bundle, count);
  };
}

SessionPlan plan_session(const std::string &folder, const SessionOptions &given, const MakeEngine &make,
                         std::uint64_t process) {
  Bundle bundle(folder);
  const SessionOptions options = checked(given, bundle);
  const std::unique_ptr<Engine> engine = make(bundle);
  MemoryNeeds needs = memory_needs(bundle, *engine, options);
  needs.process = process;
  return plan_of(bundle, *engine, needs, plan_weights(bundle, needs, options), options);
}

Session::Implementation::Implementation(Session &session, const std::string &folder, const SessionOptions &given,
                                        const MakeEngine &make, const FlashFile::Wrap &wrap)
    : bundle(folder, wrap),
      options(checked(given, bundle)),
      engine(make(bundle)),
      machine(machine_memory()),
      needs(memory_needs(bundle, *engine, options)),
      reservation([&](std::uint64_t process) {
        needs.process = process;
        plan = plan_weights(bundle, needs, options);
        check_machine(bundle, needs, plan, options, machine);
        return needs.total() - process + weight_bytes();
      }),
      to_engine(*engine),
      weights(bundle.file(), in_flash(bundle, keep_planned()), [this](Pass pass) { return runs_of(pass); }, &to_engine),
      in_use(*engine, weights, packages),
      experts(bundle, weights, plan),
      inputs(bundle.model()),
      embedding(bundle, weights),
      kept_memory(std::make_shared<KvMemory>()) {
  engine->open(lengths_of(model(), options));
  if (bundle.packaged()) {
    packages = std::make_unique<PackageStore>(*engine, plan.pinned, plan.ring_bytes - flash_ring(bundle, plan),
                                              [this](Pass pass) { return units_of(pass); });
  }
  if (model().role_width != 0) role_head = std::make_unique<RoleHead>(bundle);
  kept_memory->memory = &engine->memory();
  kept_memory->layers = kv_geometry(model());
  kept_memory->positions = lengths_of(model(), options).prefix;
  kept_memory->chunk = kept_chunk(model(), options);
  if (options.memory_bytes != 0) kept_memory->limit = kept_limit(model(), options);
  own.reset(new Sequence(session, kept_memory, model().prefix_block, [this] { --open_sequences; }));
  ++open_sequences;
}

std::uint64_t Session::Implementation::weight_bytes() const {
  return std::max(plan.pinned_bytes + plan.ring_bytes, plan.passing_bytes);
}

const ResidencyPlan &Session::Implementation::keep_planned() {
  if (plan.kept.empty()) return plan;
  const std::unordered_set<std::string> found = keep_units(bundle, *engine, to_engine, plan);
  const std::uint64_t before = weight_bytes();
  plan = plan_weights(bundle, needs, options, &found);
  check_machine(bundle, needs, plan, options, machine);
  const std::uint64_t after = weight_bytes();
  if (after < before) reservation.give_back(before - after);
  if (after > before) reservation.take(after - before);
  return plan;
}

std::vector<const Run *> Session::Implementation::runs_of(Pass pass) const {
  std::vector<const Run *> out;
  const auto add = [&](const WeightUnit &unit) {
    if (unit.run != nullptr) out.push_back(unit.run);
  };
  visit(bundle, pass, add, [&](std::size_t i) {
    for (const WeightUnit *unit : bundle.chunks()[i].dense()) add(*unit);
    experts.append_runs(i, pass, out);
  });
  return out;
}

std::vector<const WeightUnit *> Session::Implementation::units_of(Pass pass) const {
  std::vector<const WeightUnit *> out;
  const auto add = [&](const WeightUnit &unit) {
    if (unit.run == nullptr) out.push_back(&unit);
  };
  visit(bundle, pass, add, [&](std::size_t i) { add(*bundle.chunks()[i].unit); });
  return out;
}

ResidencyPlan Session::Implementation::present() const {
  ResidencyPlan out = plan;
  out.pinned.clear();
  for (const Unit &unit : weight_units(bundle)) {
    if (pinned(unit.name)) out.pinned.insert(unit.name);
  }
  return out;
}

void Session::Implementation::relieve() {
  const std::uint64_t limit = resident_limit.load();
  if (plan.pinned_bytes <= limit) return;
  const std::uint64_t before = plan.pinned_bytes + plan.ring_bytes;
  pin_less(with_fewer_pins(bundle, present(), limit));
  const std::uint64_t after = plan.pinned_bytes + plan.ring_bytes;
  if (after < before) reservation.give_back(before - after);
}

void Session::Implementation::pin_less(ResidencyPlan less) {
  std::unordered_set<std::string> gone;
  std::vector<const Run *> runs;
  for (const std::string &name : present().pinned) {
    if (less.pinned.count(name) != 0) continue;
    gone.insert(name);
    const FlashLayout &file = bundle.file().layout();
    const auto run = file.index.find(name);
    if (run != file.index.end()) runs.push_back(&file.runs[run->second]);
  }
  weights.unpin(runs, in_flash(bundle, less).ring_bytes);
  plan = std::move(less);
  experts.follow(plan);
  if (packages) packages->unpin(gone, plan.ring_bytes - flash_ring(bundle, plan));
}

bool Session::Implementation::pinned(const std::string &unit) const {
  const FlashLayout &file = bundle.file().layout();
  const auto run = file.index.find(unit);
  if (run == file.index.end()) return plan.pinned.count(unit) != 0;
  return weights.pinned(file.runs[run->second]) != nullptr;
}

void Session::Implementation::begin(Pass kind, Pass then) {
  relieve();
  if (experts.begin(kind)) weights.idle();
  weights.begin(kind, then);
  if (packages) packages->begin(kind, then);
}

void Session::Implementation::idle() {
  in_use.finish();
  weights.idle();
  if (packages) packages->idle();
  relieve();
}

void Session::Implementation::check_lengths(bool text, std::int64_t count, std::int64_t committed,
                                            std::int64_t segments) const {
  if (count > kMaxPositions || committed > kMaxPositions || segments > kMaxPositions) {
    fail(EK_INVALID_ARGUMENT, "a pass over ", count, " positions after ", committed, "; the limit is ", kMaxPositions);
  }
  const std::int64_t longest = text ? lengths_of(model(), options).rows : options.canvas;
  const std::int64_t planned = lengths_of(model(), options).prefix;
  const bool fits = count <= longest && committed <= planned;
  if (fits && segments <= std::max(options.sequences, options.segments)) return;
  SessionOptions longer = options;
  longer.canvas = std::max(options.canvas, count);
  (model().causal_prefix ? longer.positions : longer.cached) = std::max(planned, committed);
  longer.segments = std::max(options.segments, segments);
  std::ostringstream message;
  if (!fits) {
    message << "passes of up to " << options.canvas << " positions after " << planned << ", not for " << count
            << " after " << committed << "; open the session with canvas = " << longer.canvas
            << (model().causal_prefix ? ", positions = " : ", cached = ") << std::max(planned, committed);
  } else {
    const std::int64_t planned = std::max(options.sequences, options.segments);
    message << planned << (planned == 1 ? " segment" : " segments") << " of a pass, not for " << segments
            << "; open the session with segments = " << segments;
  }
  check_room(longer, message.str());
}

void Session::Implementation::make_room(std::int64_t count, std::int64_t committed) {
  const std::int64_t planned = lengths_of(model(), options).prefix;
  const bool possible = count <= kMaxPositions && committed <= kMaxPositions;
  if (options.memory_bytes == 0 || !possible || (count <= options.canvas && committed <= planned)) {
    return check_lengths(false, count, committed, 1);
  }
  engine->check_rows(count, committed);
  SessionOptions longer = options;
  longer.canvas = std::max(options.canvas, count);
  (model().causal_prefix ? longer.positions : longer.cached) = std::max(planned, committed);
  MemoryNeeds more = memory_needs(bundle, *engine, longer);
  std::uint64_t copied = 0;  // what a layer with a window keeps moves into a larger chunk, one layer at a time
  for (const KvGeometry &layer : kept_memory->layers) {
    if (layer.window != 0) copied = std::max(copied, KeptRows::bytes({layer}, planned, kept_memory->chunk));
  }
  more.prefix += copied;
  // An engine's own memory holds what it keeps for as long as it is open.
  if (more.engine_weights < plan.kept_bytes) return check_lengths(false, count, committed, 1);
  idle();
  const ResidencyPlan own = present();
  ResidencyPlan less;
  reservation.change([&](std::uint64_t process) {
    more.process = process;
    try {
      plan_weights(bundle, more, longer, &plan.kept);
    } catch (const BudgetError &error) {
      throw BudgetError(std::string(error.what()) + "; give that much, or ask for fewer tokens", error.needed());
    }
    less = within(bundle, own, longer.memory_bytes - more.total());
    return more.total() - process + less.pinned_bytes + less.ring_bytes;
  });
  if (less.pinned_bytes != own.pinned_bytes || less.ring_bytes != own.ring_bytes) pin_less(std::move(less));
  options = longer;
  needs = more;
  kept_memory->positions = lengths_of(model(), options).prefix;
  kept_memory->limit = kept_limit(model(), options) + copied;
}

void Session::Implementation::check_sequences(std::int64_t count) const {
  if (count <= options.sequences) return;
  SessionOptions longer = options;
  longer.sequences = count;
  std::ostringstream message;
  message << options.sequences << (options.sequences == 1 ? " sequence" : " sequences") << ", not for " << count
          << "; open the session with sequences = " << count;
  check_room(longer, message.str());
}

// Whether there is memory for more than the session was opened for.
void Session::Implementation::check_room(const SessionOptions &longer, const std::string &message) const {
  MemoryNeeds more = memory_needs(bundle, *engine, longer);
  more.process = needs.process;
  if (options.memory_bytes == 0) return check_machine(bundle, more, plan, longer, machine);
  throw BudgetError(bundle.path() + ": the memory budget was planned for " + message, least_budget(bundle, more, longer));
}

void Session::Implementation::with_kv_room(std::uint64_t bytes, const std::function<void()> &take) {
  try {
    return take();
  } catch (const KvFull &) {
    if (kept_memory->held == kept_memory->kept()) no_kv_room(bytes);
  }
  kept_memory->pack();
  try {
    return take();
  } catch (const KvFull &) {
    no_kv_room(bytes);
  }
}

void Session::Implementation::no_kv_room(std::uint64_t bytes) const {
  const std::uint64_t limit = kept_memory->limit, each = limit / static_cast<std::uint64_t>(options.sequences);
  SessionOptions more = options;
  // Each brings room for a text of the planned length.
  if (each != 0) more.sequences += static_cast<std::int64_t>((bytes + each - 1) / each);
  more.sequences = std::min(more.sequences, kMostSequences);
  std::ostringstream message;
  message << bundle.path() << ": a pass that keeps " << bytes << " bytes more of keys and values goes beyond the " << limit
          << " of the memory budget; close or crop a sequence, or open the session with sequences = " << more.sequences;
  MemoryNeeds needed = memory_needs(bundle, *engine, more);
  needed.process = needs.process;
  throw BudgetError(message.str(), least_budget(bundle, needed, more));
}

Session::Session(const std::string &bundle, const SessionOptions &options, const MakeEngine &make,
                 const FlashFile::Wrap &wrap)
    : implementation_(std::make_unique<Implementation>(*this, bundle, options, make, wrap)) {}

Session::~Session() = default;

Sequence &Session::sequence() { return *implementation_->own; }
const Sequence &Session::sequence() const { return *implementation_->own; }

std::unique_ptr<Sequence> Session::open_sequence() {
  Implementation &own = *implementation_;
  own.check_sequences(own.open_sequences + 1);
  std::unique_ptr<Sequence> made(
      new Sequence(*this, own.kept_memory, own.model().prefix_block, [&own] { --own.open_sequences; }));
  ++own.open_sequences;
  return made;
}

std::unique_ptr<Sequence> Session::copy_sequence(const Sequence &original) {
  Implementation &own = *implementation_;
  own.check_sequences(own.open_sequences + 1);
  std::unique_ptr<Sequence> made(new Sequence(original, [&own] { --own.open_sequences; }));
  ++own.open_sequences;
  return made;
}

std::vector<HeadResult> Session::pass(const std::vector<PassSegment> &segments, Pass then) {
  implementation_->kept_memory->pack_if_scattered();
  return PassRun(*implementation_, segments).run(then);
}

void Session::exchange_experts() { implementation_->experts.exchange(); }
std::int64_t Session::prefill_rows() const { return prefill_chunk(implementation_->model()); }
const Model &Session::model() const { return implementation_->model(); }
const Json &Session::sampler() const { return implementation_->bundle.sampler(); }
const MemoryNeeds &Session::needs() const { return implementation_->needs; }
int Session::threads() const { return implementation_->engine->threads(); }

void Session::idle() {
  implementation_->idle();
  implementation_->experts.exchange();
}

void Session::observe(SessionObserver *observer) noexcept {
  Implementation &own = *implementation_;
  try {
    own.in_use.finish();
  } catch (...) {
    // Of a pass that has failed already.
  }
  own.weights.idle();  // no read is under way any more
  if (own.packages) own.packages->idle();
  own.observer = observer;
  own.in_use.observe(observer);
  own.bundle.file().observe(observer);
}

void Session::limit_resident(std::uint64_t bytes) {
  std::atomic<std::uint64_t> &limit = implementation_->resident_limit;
  std::uint64_t known = limit.load();
  while (bytes < known && !limit.compare_exchange_weak(known, bytes)) {
  }
}

SessionPlan Session::plan() const {
  const Implementation &own = *implementation_;
  SessionPlan out = plan_of(own.bundle, *own.engine, own.needs, own.plan, own.options);
  for (PlannedUnit &unit : out.units) unit.pinned = own.pinned(unit.name);
  return out;
}

void Session::make_room(std::int64_t count, std::int64_t committed) { implementation_->make_room(count, committed); }

std::int64_t Session::adapter() const { return implementation_->options.adapter; }

bool Session::opens_here() const { return implementation_->engine->opens_here(); }

std::int64_t Session::most_segments() const {
  const SessionOptions &options = implementation_->options;
  return options.memory_bytes == 0 ? 0 : std::max(options.sequences, options.segments);
}

void Session::check_text(const Sequence &sequence, const std::int64_t *ids, std::int64_t count) const {
  edgekit::check_text(*implementation_, sequence, ids, count);
}

void Session::check_prefill(const Sequence &sequence, const std::int64_t *ids, std::int64_t count) const {
  edgekit::check_prefill(*implementation_, sequence, ids, count);
}

SessionStatistics Session::statistics() const {
  const Implementation &own = *implementation_;
  RingStatistics ring = own.weights.ring_statistics();
  if (own.packages) {
    ring.bytes_read += own.packages->bytes_opened();
    ring.read_seconds += own.packages->open_seconds();
    ring.wait_seconds += own.packages->wait_seconds();
  }
  SessionStatistics out;
  out.io_mode = own.bundle.file().io_mode();
  out.pinned_bytes = own.plan.pinned_bytes;
  out.ring_bytes = own.plan.ring_bytes;
  out.streamed_bytes_per_step = own.plan.streamed_bytes;
  out.bytes_read = ring.bytes_read;
  out.bytes_skipped = ring.bytes_skipped;
  out.bytes_exchanged = own.weights.bytes_exchanged();
  out.scratch_bytes = own.engine->scratch_held();
  out.io_seconds = ring.read_seconds;
  out.io_wait_seconds = ring.wait_seconds;
  out.pass_seconds = own.pass_seconds;
  out.passes = own.passes;
  out.experts = own.experts.totals();
  return out;
}

ExpertUse Session::expert_use(std::size_t layer, std::size_t expert) const {
  return implementation_->experts.use(layer, expert);
}

}  // namespace edgekit
