#include "session/memory.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <set>
#include <sstream>
#include <utility>

#include "session/role_head.h"

namespace edgekit {
namespace {

// Positions per prefill pass for models without a canvas length of their own.
constexpr std::int64_t kPrefillPositions = 256;
// Share of the weight budget that reading ahead may take beyond the two largest runs, and its limit.
constexpr std::uint64_t kRingShare = 8, kRingMost = std::uint64_t{256} << 20;
// Runs up to this size are pinned before any other: their reads are too short to hide behind computation.
constexpr std::uint64_t kSmallRunBytes = std::uint64_t{1} << 20;
// Of tiles that are looked up row by row, and in no step as a whole.
constexpr char kEmbeddingGroup[] = "embedding";
constexpr char kExpertGroup[] = "expert", kSparseExpertGroup[] = "sparse expert";

std::uint64_t floats(std::int64_t count) { return sizeof(float) * static_cast<std::uint64_t>(count); }

// As flashload/sizes.py has it: what somebody gave is not rounded.
std::string exact_size(std::uint64_t count) {
  const std::pair<double, const char *> units[] = {{1e12, " TB"}, {1e9, " GB"}, {1e6, " MB"}, {1e3, " kB"}};
  for (const auto &[unit, name] : units) {
    if (static_cast<double>(count) < unit) continue;
    char text[32];
    std::snprintf(text, sizeof text, "%.9g%s", static_cast<double>(count) / unit, name);
    return text;
  }
  return std::to_string(count) + " B";
}

std::string megabytes(std::uint64_t count) { return std::to_string((count + 999'999) / 1'000'000) + " MB"; }

// What a plan takes besides weights, each with a name; what is not there is not named.
std::string parts(const MemoryNeeds &needs, const char *name, std::uint64_t bytes) {
  const std::pair<const char *, std::uint64_t> all[] = {
      {"process", needs.process + needs.allowance}, {"activations", needs.activations + needs.scratch},
      {"vocabulary head", needs.head}, {"prefix", needs.prefix}, {name, bytes}};
  std::string out;
  for (const auto &[what, size] : all) {
    if (size != 0) out += (out.empty() ? " (" : ", ") + (what + (" " + megabytes(size)));
  }
  return out + ")";
}

// Of the session itself.
std::uint64_t activations(const Bundle &bundle, std::int64_t positions, std::int64_t prefix) {
  const Model &model = bundle.model();
  // x, the last hidden states, rows picked for the head, and what self-conditioning mixes in.
  std::uint64_t total = floats(positions * model.hidden * (model.self_conditioning ? 4 : 3));
  for (const Rope &rope : model.ropes) {
    total += floats(positions * rope.floats_per_position());
  }
  if (model.adapters > 0) total += floats(positions);
  if (!model.causal_prefix) return total;
  std::set<std::int64_t> windows;
  for (const LayerInfo &layer : model.layers) windows.insert(layer.window);
  for (const std::int64_t window : windows) {
    total += floats(positions * (positions + (window == 0 ? prefix : std::min(prefix, window - 1))));
  }
  return total;
}

// Units that the ring must hold at once: a layer's dense run is held while its experts pass, so there must be room for it
// anywhere and two experts besides.
std::size_t units_ahead(const Bundle &bundle) {
  for (const BundleChunk &chunk : bundle.chunks()) {
    if (!chunk.experts.empty()) return 3;
  }
  return 2;
}

// Packages are opened, all else is read from the flash file.
constexpr int kFlashRing = 0, kPackageRing = 1;
int ring_of(const WeightUnit &unit) { return unit.run == nullptr ? kPackageRing : kFlashRing; }

// What the engine keeps of these units, in room for `room` bytes, or `known`. Each comes through `free` bytes of memory.
ResidencyPlan engine_units(const std::vector<Unit> &step, const std::unordered_set<std::string> *known, std::uint64_t room,
                           std::uint64_t free) {
  ResidencyPlan out;
  std::vector<Unit> fitting;
  std::copy_if(step.begin(), step.end(), std::back_inserter(fitting), [&](const Unit &unit) { return unit.bytes <= free; });
  out.kept = known != nullptr ? *known : room != 0 ? units_for(fitting, room) : std::unordered_set<std::string>();
  std::uint64_t largest = 0;
  for (const Unit &unit : step) {
    if (out.kept.count(unit.name) == 0) continue;
    out.kept_bytes += unit.bytes;
    largest = std::max(largest, unit.bytes);
  }
  if (known == nullptr) out.passing_bytes = std::min({free, out.kept_bytes, std::max(kRingMost, 2 * largest)});
  return out;
}

}  // namespace

std::vector<KvGeometry> kv_geometry(const Model &model) {
  std::vector<KvGeometry> out;
  for (const LayerInfo &layer : model.layers) out.push_back({layer.kv_heads, layer.head_dim, layer.window});
  return out;
}

std::int64_t prefill_chunk(const Model &model) {
  const std::int64_t chunk = model.canvas_length != 0 ? model.canvas_length : kPrefillPositions;
  return std::max(model.prefix_block, chunk - chunk % model.prefix_block);  // whole blocks
}

EngineLengths lengths_of(const Model &model, const SessionOptions &options) {
  EngineLengths out;
  out.prefix = model.causal_prefix ? options.positions : options.cached;
  out.rows = model.causal_prefix ? std::max(options.canvas, std::min(prefill_chunk(model), options.positions))
                                 : options.canvas;
  out.head_rows = options.canvas;
  out.segments = std::max(options.sequences, options.segments);
  return out;
}

std::int64_t kept_chunk(const Model &model, const SessionOptions &options) {
  return std::max(prefill_chunk(model), options.canvas);
}

std::uint64_t kept_limit(const Model &model, const SessionOptions &options) {
  const std::int64_t positions = lengths_of(model, options).prefix;
  return static_cast<std::uint64_t>(options.sequences) *
         KeptRows::bytes(kv_geometry(model), positions, kept_chunk(model, options));
}

MemoryNeeds memory_needs(const Bundle &bundle, const Engine &engine, const SessionOptions &options) {
  const Model &model = bundle.model();
  const EngineLengths lengths = lengths_of(model, options);
  const EngineBytes own = engine.bytes(lengths);
  MemoryNeeds needs;
  const std::uint64_t sequences = static_cast<std::uint64_t>(options.sequences);
  needs.prefix = kept_limit(model, options);
  // Copies of a sequence leave rows that nobody keeps: to give them back, those of a layer are copied.
  std::uint64_t layer_bytes = 0;
  for (const KvGeometry &layer : kv_geometry(model)) {
    layer_bytes = std::max(layer_bytes, KeptRows::bytes({layer}, lengths.prefix, kept_chunk(model, options)));
  }
  if (options.sequences > 1) needs.prefix += sequences * layer_bytes;
  needs.activations = sequences * activations(bundle, lengths.rows, lengths.prefix) + own.activations;
  // What is written for an engine's memory of its own.
  if (!engine.memory().session()) needs.activations += floats(lengths.rows * model.hidden);
  needs.scratch = own.scratch;
  needs.head = own.head + RoleHead::bytes(model, lengths.head_rows);
  needs.allowance = own.allowance;
  if (!bundle.packaged()) needs.engine_weights = own.weights;
  for (const BundleChunk &chunk : bundle.chunks()) {
    needs.sparse_experts = needs.sparse_experts || engine.experts_wanted(chunk, lengths) < chunk.experts.size();
  }
  return needs;
}

std::vector<Unit> weight_units(const Bundle &bundle) {
  std::vector<Unit> units;
  const auto add = [&](const WeightUnit &unit, const char *group) {
    const bool small = unit.bytes <= kSmallRunBytes && std::string(group) != kExpertGroup;
    units.push_back({unit.name, unit.bytes, small ? "dense small" : group, ring_of(unit)});
  };
  if (bundle.self_conditioning() != nullptr) add(*bundle.self_conditioning(), "self-conditioning");
  for (const BundleChunk &chunk : bundle.chunks()) {
    for (const WeightUnit *unit : chunk.dense()) add(*unit, "layer");
    for (const WeightUnit *expert : chunk.experts) add(*expert, kExpertGroup);
  }
  add(bundle.final(), "final");
  for (const BundleTile &tile : bundle.scores()) add(*tile.unit, "head");
  if (bundle.has_head()) {
    for (const BundleTile &tile : bundle.embedding()) {
      units.push_back({tile.unit->name, tile.unit->bytes, kEmbeddingGroup, kFlashRing});
    }
  }
  return units;
}

ResidencyPlan plan_weights(const Bundle &bundle, const MemoryNeeds &needs, const SessionOptions &options,
                           const std::unordered_set<std::string> *kept) {
  std::vector<Unit> step = weight_units(bundle), looked_up;
  for (Unit &unit : step) {
    // Opening a package takes longer than reading as many bytes.
    if ((needs.sparse_experts || bundle.packaged()) && unit.group == kExpertGroup) unit.group = kSparseExpertGroup;
  }
  const auto lookups = std::find_if(step.begin(), step.end(), [](const Unit &unit) { return unit.group == kEmbeddingGroup; });
  looked_up.assign(lookups, step.end());
  step.erase(lookups, step.end());
  const bool limited = options.memory_bytes != 0;
  const std::uint64_t free = !limited ? UINT64_MAX
                             : options.memory_bytes > needs.total() ? options.memory_bytes - needs.total()
                                                                    : 0;
  const ResidencyPlan of_engine = engine_units(step, kept, needs.engine_weights, free);
  step.erase(std::remove_if(step.begin(), step.end(), [&](const Unit &unit) { return of_engine.kept.count(unit.name) != 0; }),
             step.end());
  // Where the engine keeps the table, tokens are looked up in another copy, or on the disk.
  for (std::size_t i = 0; !bundle.has_head() && i < bundle.scores().size(); ++i) {
    const WeightUnit &tile = *bundle.scores()[i].unit;
    if (of_engine.kept.count(tile.name) != 0) looked_up.push_back({tile.name, tile.bytes, kEmbeddingGroup, kFlashRing});
  }
  std::uint64_t step_bytes = 0;
  for (const Unit &unit : step) step_bytes += unit.bytes;
  std::uint64_t everything = step_bytes;
  for (const Unit &unit : looked_up) everything += unit.bytes;
  std::uint64_t budget = limited ? free : everything;
  std::uint64_t ring = std::min(kRingMost, std::min(budget, everything) / kRingShare);
  const std::size_t ring_units = units_ahead(bundle);
  BudgetTooSmall too_small;
  ResidencyPlan plan;
  if (options.resident_bytes < step_bytes && least_ring(step, ring_units) >= step_bytes) {
    // Reading ahead takes the memory of all.
    plan.ring_bytes = plan.streamed_bytes = step_bytes;
    if (budget < step_bytes) too_small.needed = step_bytes;
  } else if (options.resident_bytes < everything) {
    // A budget that holds every unit would pin every unit, whatever the cap.
    const std::uint64_t below = std::max(options.resident_bytes, std::max<std::uint64_t>(step_bytes, 1) - 1);
    budget = std::min({budget, options.resident_bytes + std::max(ring, least_ring(step, ring_units)), below});
    ring = budget > options.resident_bytes ? budget - options.resident_bytes : 0;
  }
  if (plan.ring_bytes == 0) plan = plan_residency(step, budget, ring, ring_units, too_small);
  plan.kept = of_engine.kept;
  plan.kept_bytes = of_engine.kept_bytes;
  plan.passing_bytes = of_engine.passing_bytes;
  if (too_small.needed != 0) {
    // The next attempt may find the process a little larger.
    const std::uint64_t wanted = needs.total() + too_small.needed + (std::uint64_t{1} << 20);
    std::ostringstream message;
    message << bundle.path() << ": a memory budget of " << exact_size(options.memory_bytes)
            << " is too small; this model and length need at least " << megabytes(wanted)
            << parts(needs, "reading ahead", too_small.needed);
    throw BudgetError(message.str(), wanted);
  }
  if (plan.ring_bytes != 0) return plan;
  // An embedding that is only looked up row by row is the last to be worth memory.
  std::uint64_t left = budget - plan.pinned_bytes;
  for (const Unit &unit : looked_up) {
    if (unit.bytes > left) continue;
    left -= unit.bytes;
    plan.pinned.insert(unit.name);
    plan.pinned_bytes += unit.bytes;
  }
  return plan;
}

namespace {

std::vector<Unit> streamed_units(const Bundle &bundle, const ResidencyPlan &plan) {
  std::vector<Unit> out;
  for (Unit &unit : weight_units(bundle)) {
    const bool stays = plan.pinned.count(unit.name) != 0 || plan.kept.count(unit.name) != 0;
    if (unit.group != kEmbeddingGroup && !stays) out.push_back(std::move(unit));
  }
  return out;
}

}  // namespace

ResidencyPlan with_fewer_pins(const Bundle &bundle, const ResidencyPlan &plan, std::uint64_t pinned_bytes) {
  ResidencyPlan out = plan;
  const std::vector<Unit> units = weight_units(bundle);
  for (auto unit = units.rbegin(); unit != units.rend() && out.pinned_bytes > pinned_bytes; ++unit) {
    if (out.pinned.erase(unit->name) == 0) continue;
    out.pinned_bytes -= unit->bytes;
    if (unit->group != kEmbeddingGroup && out.kept.count(unit->name) == 0) out.streamed_bytes += unit->bytes;
  }
  out.ring_bytes = std::max(out.ring_bytes, least_ring(streamed_units(bundle, out), units_ahead(bundle)));
  return out;
}

ResidencyPlan within(const Bundle &bundle, const ResidencyPlan &plan, std::uint64_t room) {
  ResidencyPlan less = plan;
  while (less.pinned_bytes + less.ring_bytes > room && less.pinned_bytes != 0) {
    const std::uint64_t beside = room > less.ring_bytes ? room - less.ring_bytes : 0;
    less = with_fewer_pins(bundle, less, std::min(beside, less.pinned_bytes - 1));
  }
  if (less.ring_bytes <= room) return less;
  less.ring_bytes = 0;
  return with_fewer_pins(bundle, less, 0);
}

std::uint64_t flash_ring(const Bundle &bundle, const ResidencyPlan &plan) {
  if (plan.ring_bytes == 0 || !bundle.packaged()) return plan.ring_bytes;
  return part_of_ring(streamed_units(bundle, plan), plan.ring_bytes, units_ahead(bundle), kFlashRing);
}

void check_machine(const Bundle &bundle, const MemoryNeeds &needs, const ResidencyPlan &plan,
                   const SessionOptions &options, std::uint64_t machine) {
  const std::uint64_t weights = plan.pinned_bytes + plan.ring_bytes, wanted = needs.total() + weights;
  if (options.memory_bytes != 0 || machine == 0 || wanted <= machine) return;
  const std::uint64_t least = least_budget(bundle, needs, options);
  std::ostringstream message;
  message << bundle.path() << ": this model and length need " << megabytes(wanted) << parts(needs, "weights", weights)
          << " and this machine has " << megabytes(machine) << "; ";
  if (least <= machine) {
    message << "give a memory budget (--memory), at least " << megabytes(least)
            << ": weights that it does not hold are read from the disk";
  } else {
    message << "with weights read from the disk it is still " << megabytes(least)
            << ": ask for fewer tokens or give a shorter prompt";
  }
  throw BudgetError(message.str(), least);
}

std::uint64_t least_budget(const Bundle &bundle, const MemoryNeeds &needs, SessionOptions options) {
  options.memory_bytes = 1;
  try {
    plan_weights(bundle, needs, options);
  } catch (const BudgetError &error) {
    return error.needed();
  }
  return options.memory_bytes;
}

std::int64_t most_sequences(const Bundle &bundle, const Engine &engine, SessionOptions options, std::uint64_t process,
                            std::uint64_t machine) {
  const auto fits = [&](std::int64_t sequences) {
    options.sequences = sequences;
    MemoryNeeds needs = memory_needs(bundle, engine, options);
    needs.process = process;
    if (options.memory_bytes != 0) return least_budget(bundle, needs, options) <= options.memory_bytes;
    const ResidencyPlan plan = plan_weights(bundle, needs, options);
    return needs.total() + plan.pinned_bytes + plan.ring_bytes <= machine;
  };
  if ((options.memory_bytes == 0 && machine == 0) || !fits(1)) return 0;
  std::int64_t most = 1, too_many = 2;
  for (; too_many <= kMostSequences && fits(too_many); too_many *= 2) most = too_many;
  while (too_many - most > 1) {
    const std::int64_t middle = most + (too_many - most) / 2;
    (fits(middle) ? most : too_many) = middle;
  }
  return std::min(most, kMostSequences);
}

}  // namespace edgekit
