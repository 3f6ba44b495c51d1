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
#include "session/bundle.h"
#include "session/experts.h"
#include "session/inputs.h"
#include "session/memory.h"
#include "session/native_engine.h"
#include "session/package_store.h"
#include "session/prefix.h"
#include "session/process.h"
#include "session/reservation.h"
#include "session/table_rows.h"
#include "session/weight_store.h"

namespace edgekit {
namespace {

using Clock = std::chrono::steady_clock;

// Bounds that keep products of sizes within 64 bits; far beyond any model and machine.
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 22;
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
  return options;
}

// As far as the bundle's packages go: a longer prefix needs no memory, because no function takes it.
SessionOptions checked(SessionOptions options, const Bundle &bundle) {
  options.positions = std::min(checked(options).positions, bundle.longest_prefix());
  return options;
}

// Weights in packages are opened by the engine; what is left in the flash file is looked up row by row.
ResidencyPlan in_flash(const Bundle &bundle, const ResidencyPlan &plan) {
  ResidencyPlan out = plan;
  if (!bundle.packaged()) return out;
  out.ring_bytes = 0;
  for (auto name = out.pinned.begin(); name != out.pinned.end();) {
    name = bundle.file().layout().index.count(*name) != 0 ? std::next(name) : out.pinned.erase(name);
  }
  return out;
}

SessionPlan plan_of(const Bundle &bundle, const MemoryNeeds &needs, const ResidencyPlan &plan,
                    const SessionOptions &options) {
  SessionPlan out;
  out.needs = needs;
  out.pinned = plan.pinned_bytes;
  out.ring = plan.ring_bytes;
  out.streamed = plan.streamed_bytes;
  for (Unit &unit : weight_units(bundle)) {
    out.weights += unit.bytes;
    const bool pinned = plan.pinned.count(unit.name) != 0;
    out.units.push_back({std::move(unit.name), std::move(unit.group), unit.bytes, pinned});
  }
  out.least_memory = least_budget(bundle, needs, options);
  return out;
}

}  // namespace

MakeEngine native_engine(const SessionOptions &options) {
  const int threads = checked(options).threads;
  return [threads](Bundle &bundle) {
    return std::make_unique<NativeEngine>(bundle, threads != 0 ? threads : usable_cores());
  };
}

SessionPlan plan_session(const std::string &folder, const SessionOptions &given, const MakeEngine &make,
                         std::uint64_t process) {
  Bundle bundle(folder);
  const SessionOptions options = checked(given, bundle);
  const std::unique_ptr<Engine> engine = make(bundle);
  MemoryNeeds needs = memory_needs(bundle, *engine, options);
  needs.process = process;
  return plan_of(bundle, needs, plan_weights(bundle, needs, options), options);
}

struct Session::Implementation {
  Implementation(const std::string &folder, const SessionOptions &given, const MakeEngine &make,
                 const FlashFile::Wrap &wrap)
      : bundle(folder, wrap),
        options(checked(given, bundle)),
        engine(make(bundle)),
        machine(machine_memory()),
        needs(memory_needs(bundle, *engine, options)),
        reservation([&](std::uint64_t process) {
          needs.process = process;
          plan = plan_weights(bundle, needs, options);
          check_machine(bundle, needs, plan, options, machine);
          return needs.total() - process + plan.pinned_bytes + plan.ring_bytes;
        }),
        weights(bundle.file(), in_flash(bundle, plan), [this](Pass pass) { return runs_of(pass); }),
        experts(bundle, weights, plan),
        prefix(kv_geometry(bundle.model()), bundle.model().causal_prefix ? options.positions : 0,
               prefill_chunk(bundle.model())),
        inputs(bundle.model()),
        embedding(bundle, weights) {
    engine->open(lengths_of(model(), options));
    if (bundle.packaged()) {
      packages = std::make_unique<PackageStore>(*engine, plan, [this](Pass pass) { return units_of(pass); });
    }
  }

  const Model &model() const { return bundle.model(); }

  // What a pass uses, in order, experts excluded: their order is decided when they are scheduled.
  template <typename Unit, typename Chunk>
  void visit(Pass pass, const Unit &unit, const Chunk &chunk) const {
    if (pass == Pass::denoise && bundle.self_conditioning() != nullptr) unit(*bundle.self_conditioning());
    for (std::size_t i = 0; pass != Pass::head && i < bundle.chunks().size(); ++i) chunk(i);
    if (pass == Pass::denoise) unit(bundle.final());
    if (pass == Pass::prefill) return;
    for (const BundleTile &tile : bundle.scores()) unit(*tile.unit);
  }

  std::vector<const Run *> runs_of(Pass pass) const {
    std::vector<const Run *> out;
    if (bundle.packaged()) return out;
    visit(pass, [&](const WeightUnit &unit) { out.push_back(unit.run); }, [&](std::size_t i) {
      out.push_back(bundle.chunks()[i].unit->run);
      experts.append_runs(i, out);
    });
    return out;
  }

  std::vector<const WeightUnit *> units_of(Pass pass) const {
    std::vector<const WeightUnit *> out;
    visit(pass, [&](const WeightUnit &unit) { out.push_back(&unit); },
          [&](std::size_t i) { out.push_back(bundle.chunks()[i].unit); });
    return out;
  }

  // Has a unit in memory while `body` uses it.
  template <typename Body>
  void with(const WeightUnit &unit, Body &&body) {
    if (unit.run != nullptr) {
      const WeightStore::Use loaded(weights, *unit.run);
      body(LoadedUnit{&unit, loaded.data()});
    } else {
      const PackageStore::Use opened(*packages, unit);
      body(LoadedUnit{&unit, nullptr});
    }
  }

  // Follows limit_resident. No unit is in use.
  void relieve() {
    const std::uint64_t limit = resident_limit.load();
    if (plan.pinned_bytes <= limit) return;
    // Experts have changed places since the plan was made.
    ResidencyPlan own = plan;
    own.pinned.clear();
    for (const Unit &unit : weight_units(bundle)) {
      if (pinned(unit.name)) own.pinned.insert(unit.name);
    }
    ResidencyPlan less = with_fewer_pins(bundle, own, limit);
    std::unordered_set<std::string> gone;
    std::vector<const Run *> runs;
    for (const std::string &name : own.pinned) {
      if (less.pinned.count(name) != 0) continue;
      gone.insert(name);
      const FlashLayout &file = bundle.file().layout();
      const auto run = file.index.find(name);
      if (run != file.index.end()) runs.push_back(&file.runs[run->second]);
    }
    weights.unpin(runs, in_flash(bundle, less).ring_bytes);
    std::swap(plan, less);  // `less` is what was
    experts.follow(plan);
    const std::uint64_t before = less.pinned_bytes + less.ring_bytes, after = plan.pinned_bytes + plan.ring_bytes;
    if (after < before) reservation.give_back(before - after);
    if (packages) packages->unpin(gone, plan.ring_bytes);
  }

  // Whether it is in memory now: of experts the plan knows how many stay, the store which.
  bool pinned(const std::string &unit) const {
    const FlashLayout &file = bundle.file().layout();
    const auto run = file.index.find(unit);
    if (bundle.packaged() || run == file.index.end()) return plan.pinned.count(unit) != 0;
    return weights.pinned(file.runs[run->second]) != nullptr;
  }

  void begin(Pass kind, Pass then) {
    relieve();
    weights.begin(kind, then);
    if (packages) packages->begin(kind, then);
  }

  void idle() {
    weights.idle();
    if (packages) packages->idle();
    relieve();
  }

  // Times a pass and has its weights read ahead. One that fails leaves no half-read schedule, and a prefill no
  // half-filled prefix: the prefix is forgotten then.
  template <typename Body>
  void pass(Pass kind, Pass then, Body &&body) {
    const Clock::time_point started = Clock::now();
    const auto timed = [&] { pass_seconds += std::chrono::duration<double>(Clock::now() - started).count(); };
    try {
      begin(kind, then);
      body();
    } catch (...) {
      weights.idle();
      if (packages) packages->drop();
      if (kind == Pass::prefill) prefix.clear();
      timed();
      throw;
    }
    timed();
  }

  // A budget holds for the lengths that the session was opened for; without one, buffers grow up to what the machine has.
  void check_lengths(Pass kind, std::int64_t count, std::int64_t committed) const {
    if (count > kMaxPositions || committed > kMaxPositions) {
      fail(EK_INVALID_ARGUMENT, "a pass over ", count, " positions after ", committed, "; the limit is ",
           kMaxPositions);
    }
    const std::int64_t longest = kind == Pass::prefill ? lengths_of(model(), options).rows : options.canvas;
    const bool fits = count <= longest && (!model().causal_prefix || committed <= options.positions);
    if (fits) return;
    SessionOptions longer = options;
    longer.canvas = std::max(options.canvas, count);
    longer.positions = std::max(options.positions, committed);
    MemoryNeeds more = memory_needs(bundle, *engine, longer);
    more.process = needs.process;
    if (options.memory_bytes == 0) return check_machine(bundle, more, plan, longer, machine);
    std::ostringstream message;
    message << bundle.path() << ": the memory budget was planned for passes of up to " << options.canvas
            << " positions after " << options.positions << ", not for " << count << " after " << committed
            << "; open the session for these";
    throw BudgetError(message.str(), least_budget(bundle, more, longer));
  }

  void check_ids(const std::int64_t *ids, std::int64_t count) const {
    if (count > 0 && ids == nullptr) fail(EK_INVALID_ARGUMENT, "no token ids are given");
    for (std::int64_t i = 0; i < count; ++i) {
      if (ids[i] < 0 || ids[i] >= model().vocabulary) {
        fail(EK_INVALID_ARGUMENT, "token ", ids[i], " at position ", i, " is outside the model's vocabulary of ",
             model().vocabulary, " tokens");
      }
    }
  }

  void run_layers(float *x, std::int64_t count, bool encode) {
    inputs.set_positions(prefix.length(), count);
    for (std::size_t i = 0; i < bundle.chunks().size(); ++i) {
      const BundleChunk &chunk = bundle.chunks()[i];
      LayersCall call;
      call.chunk = &chunk;
      call.rows = count;
      call.causal = encode;
      call.x = x;
      for (std::size_t layer = chunk.first; layer < chunk.first + chunk.count; ++layer) {
        call.layers.push_back(layer_inputs(layer, count, encode));
      }
      call.experts = [&](const auto &rows, const auto &use) { experts.each(i, rows, use); };
      with(*chunk.unit, [&](const LoadedUnit &loaded) {
        call.weights = loaded;
        engine->layers(call);
      });
      for (std::size_t layer = chunk.first; encode && layer < chunk.first + chunk.count; ++layer) {
        prefix.append(layer, count);
      }
    }
  }

  LayerInputs layer_inputs(std::size_t layer, std::int64_t count, bool encode) {
    const LayerInfo &info = model().layers[layer];
    LayerInputs given;
    given.layer = layer;
    if (encode) {
      // Before the view: room for more may move what is kept.
      const PrefixView next = prefix.next(layer, count);
      given.k = next.keys;
      given.v = next.values;
    }
    given.kept = prefix.view(layer);
    given.cos = inputs.cos(info.rope);
    given.sin = inputs.sin(info.rope);
    given.mask = encode ? inputs.causal_mask(given.kept.first, info.window) : nullptr;
    return given;
  }

  void self_condition(float *x, std::int64_t count, const float *soft) {
    const std::int64_t size = count * model().hidden;
    float *earlier = soft_input.floats(size);
    for (std::int64_t i = 0; i < size; ++i) earlier[i] = soft == nullptr ? 0.0f : soft[i] * model().embedding_scale;
    with(*bundle.self_conditioning(),
         [&](const LoadedUnit &loaded) { engine->self_condition(loaded, count, x, earlier); });
  }

  void finish(const float *x, std::int64_t count) {
    float *y = last.floats(count * model().hidden);
    with(bundle.final(), [&](const LoadedUnit &loaded) { engine->final(loaded, count, x, y); });
    last_rows = count;
  }

  void check_request(const HeadRequest &request, std::int64_t positions) const {
    if (!(request.temperature > 0) || !std::isfinite(request.temperature)) {
      fail(EK_INVALID_ARGUMENT, "temperature ", request.temperature, " is not a positive number");
    }
    if (request.gumbel && !(request.gumbel->scale >= 0 && std::isfinite(request.gumbel->scale))) {
      fail(EK_INVALID_ARGUMENT, "gumbel_scale ", request.gumbel->scale, " is not a number at least 0");
    }
    if (request.top_k < 0) fail(EK_INVALID_ARGUMENT, "top_k ", request.top_k, " is negative");
    if (request.all_rows) return;
    for (const std::int64_t row : request.rows) {
      if (row < 0 || row >= positions) {
        fail(EK_INVALID_ARGUMENT, "row ", row, " is outside the ", positions, " positions of the pass");
      }
    }
  }

  HeadResult head(const HeadRequest &request) {
    const std::int64_t hidden = model().hidden;
    const float *x = last.data();
    std::int64_t rows = last_rows;
    if (!request.all_rows) {
      rows = static_cast<std::int64_t>(request.rows.size());
      float *chosen = picked.floats(rows * hidden);
      for (std::int64_t i = 0; i < rows; ++i) {
        std::memcpy(chosen + i * hidden, x + request.rows[static_cast<std::size_t>(i)] * hidden,
                    sizeof(float) * static_cast<std::size_t>(hidden));
      }
      x = chosen;
    }
    if (rows == 0) {
      idle();  // the table that was read ahead is not taken
      return {};
    }
    std::vector<float> logits;
    if (request.logits && request.logits_to == nullptr) {
      logits.resize(static_cast<std::size_t>(rows * model().vocabulary));
    }
    float *to = !request.logits ? nullptr : request.logits_to != nullptr ? request.logits_to : logits.data();
    const std::unique_ptr<HeadScores> scores = engine->head(x, rows, request, to);
    for (const BundleTile &tile : bundle.scores()) {
      with(*tile.unit, [&](const LoadedUnit &loaded) { scores->add(tile, loaded); });
    }
    HeadResult result = scores->result();
    result.logits = std::move(logits);
    return result;
  }

  Bundle bundle;
  const SessionOptions options;
  const std::unique_ptr<Engine> engine;
  const std::uint64_t machine;  // bytes of memory; 0: nobody knows
  MemoryNeeds needs;
  ResidencyPlan plan;
  Reservation reservation;  // fills the two before it
  WeightStore weights;
  std::unique_ptr<PackageStore> packages;  // null: all weights are in the flash file
  Experts experts;
  PrefixCache prefix;
  PassInputs inputs;
  EmbeddingRows embedding;
  FloatBuffer hidden_states, soft_input, last, picked;
  std::int64_t last_rows = 0;  // of the last denoise; 0: none, or it failed
  double pass_seconds = 0;
  std::atomic<std::uint64_t> resident_limit{UINT64_MAX};
};

Session::Session(const std::string &bundle, const SessionOptions &options, const MakeEngine &make,
                 const FlashFile::Wrap &wrap)
    : implementation_(std::make_unique<Implementation>(bundle, options, make, wrap)) {}

Session::~Session() = default;

std::int64_t Session::vocabulary() const { return implementation_->model().vocabulary; }
std::int64_t Session::prefix_length() const { return implementation_->prefix.length(); }
std::int64_t Session::hidden_size() const { return implementation_->model().hidden; }
void Session::reset() {
  implementation_->prefix.clear();
  implementation_->experts.exchange();
}
const Model &Session::model() const { return implementation_->model(); }
const Json &Session::sampler() const { return implementation_->bundle.sampler(); }
const MemoryNeeds &Session::needs() const { return implementation_->needs; }
int Session::threads() const { return implementation_->engine->threads(); }

void Session::idle() {
  implementation_->idle();
  implementation_->experts.exchange();
}

void Session::limit_resident(std::uint64_t bytes) {
  std::atomic<std::uint64_t> &limit = implementation_->resident_limit;
  std::uint64_t known = limit.load();
  while (bytes < known && !limit.compare_exchange_weak(known, bytes)) {
  }
}

SessionPlan Session::plan() const {
  const Implementation &own = *implementation_;
  SessionPlan out = plan_of(own.bundle, own.needs, own.plan, own.options);
  for (PlannedUnit &unit : out.units) unit.pinned = own.pinned(unit.name);
  return out;
}

void Session::check_lengths(std::int64_t count, std::int64_t committed) const {
  implementation_->check_lengths(Pass::denoise, count, committed);
}

void Session::prefill(const std::int64_t *ids, std::int64_t count) {
  Implementation &own = *implementation_;
  if (!own.model().causal_prefix) {
    fail(EK_INVALID_STATE, own.bundle.path(), ": this model encodes no prefix; put the prompt on the canvas");
  }
  if (count < 0 || count > kMaxPositions) {
    fail(EK_INVALID_ARGUMENT, count, " token ids to encode; give 0..", kMaxPositions);
  }
  own.check_ids(ids, count);
  const std::int64_t chunk = prefill_chunk(own.model());
  own.check_lengths(Pass::prefill, std::min(chunk, count), own.prefix.length() + count);
  for (std::int64_t start = 0; start < count; start += chunk) {
    const std::int64_t here = std::min(chunk, count - start);
    const bool more = start + chunk < count;
    own.pass(Pass::prefill, more ? Pass::prefill : Pass::denoise, [&] {
      float *x = own.hidden_states.floats(here * own.model().hidden);
      own.embedding.gather(ids + start, here, x);
      own.run_layers(x, here, true);
      own.prefix.advance(here);
    });
  }
}

HeadResult Session::denoise(const std::int64_t *ids, std::int64_t count, const HeadRequest &request,
                            const float *soft) {
  Implementation &own = *implementation_;
  if (count < 1 || count > kMaxPositions) {
    fail(EK_INVALID_ARGUMENT, "a canvas of ", count, " positions; it needs at least one and at most ", kMaxPositions);
  }
  own.check_ids(ids, count);
  own.check_request(request, count);
  own.check_lengths(Pass::denoise, count, own.prefix.length());
  HeadResult result;
  try {
    own.pass(Pass::denoise, Pass::denoise, [&] {
      float *x = own.hidden_states.floats(count * own.model().hidden);
      own.embedding.gather(ids, count, x);
      if (own.model().self_conditioning) own.self_condition(x, count, soft);
      own.run_layers(x, count, false);
      own.finish(x, count);
      result = own.head(request);
    });
  } catch (...) {
    own.last_rows = 0;  // callers size their arrays by the last pass that they have a result of
    throw;
  }
  return result;
}

HeadResult Session::project(const HeadRequest &request) {
  Implementation &own = *implementation_;
  if (own.last_rows == 0) fail(EK_INVALID_STATE, "project needs a denoise before it that did not fail");
  own.check_request(request, own.last_rows);
  HeadResult result;
  own.pass(Pass::head, Pass::denoise, [&] { result = own.head(request); });
  return result;
}

SessionStatistics Session::statistics() const {
  const Implementation &own = *implementation_;
  RingStatistics ring = own.weights.ring_statistics();
  if (own.packages) {
    ring.bytes_read = own.packages->bytes_opened();
    ring.read_seconds = own.packages->open_seconds();
    ring.wait_seconds = own.packages->wait_seconds();
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
  return out;
}

ExpertUse Session::expert_use(std::size_t layer, std::size_t expert) const {
  return implementation_->experts.use(layer, expert);
}

}  // namespace edgekit
