#include "session/native_engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "error.h"

namespace edgekit {
namespace {

constexpr const char *kFormat = "native", *kLayout = "native-1";
// What nothing else counts: stacks of threads, the system's own bookkeeping of mappings, small allocations.
constexpr std::uint64_t kAllowance = std::uint64_t{8} << 20, kAllowancePerThread = std::uint64_t{256} << 10;

bool operator!=(const ProgramShapes &a, const ProgramShapes &b) {
  return a.hidden != b.hidden || a.kv_heads != b.kv_heads || a.head_dim != b.head_dim || a.rotary != b.rotary ||
         a.given != b.given;
}

// What calls of layers give; a rope and an adapter may add to it.
const std::set<Input> kLayerInputs = {Input::x,   Input::prefix_k, Input::prefix_v, Input::cos,
                                      Input::sin, Input::mask,     Input::phase};

}  // namespace

NativeEngine::NativeEngine(Bundle &bundle, int threads) : bundle_(bundle), threads_(threads) {
  const Json programs = bundle.take_programs();
  const auto is = [&](const char *key, const char *wanted) {
    const Json *json = programs.find(key);
    return json != nullptr && json->kind() == Json::Kind::string && json->string() == wanted;
  };
  if (!is("format", kFormat) || !is("layout", kLayout)) {
    fail(EK_UNSUPPORTED_BUNDLE, bundle.path(), ": its programs are not ", kFormat, "/", kLayout,
         ", which the native engine runs; export the bundle again for this engine");
  }
  if (bundle.packaged()) {
    fail(EK_MALFORMED_FILE, bundle.path(), ": has packages, which the native engine does not open; export it again");
  }
  const Json &entries = programs.at("entries");
  head_ = std::make_unique<CoreHead>(bundle, entries.at("head"));
  if (const WeightUnit *unit = bundle.self_conditioning()) {
    self_conditioning_ = &single(entries, "self_conditioning", *unit, {Input::x, Input::soft});
  }
  add_layers(entries);
  final_ = &single(entries, "final", bundle.final(), {Input::x});
}

Program &NativeEngine::add_program(const Json &entries, const std::string &name, const ProgramShapes &shapes,
                                   std::size_t outputs) {
  const auto found = programs_.find(name);
  if (found != programs_.end()) {
    if (shapes != shapes_.at(name)) {
      fail(EK_MALFORMED_FILE, bundle_.path(), ": layers of different shape share the program ", name,
           "; export the bundle again");
    }
    return found->second;
  }
  Program program(name, entries.at(name), shapes);
  if (program.outputs() != outputs) {
    fail(EK_MALFORMED_FILE, bundle_.path(), ": program ", name, " has ", program.outputs(), " outputs, not ", outputs,
         "; export the bundle again");
  }
  shapes_.emplace(name, shapes);
  return programs_.emplace(name, std::move(program)).first->second;
}

const Program &NativeEngine::single(const Json &entries, const std::string &name, const WeightUnit &unit,
                                    std::set<Input> given) {
  ProgramShapes shapes;
  shapes.given = std::move(given);
  shapes.hidden = bundle_.model().hidden;
  Program &program = add_program(entries, name, shapes, 1);
  program.expect(layouts_.emplace(&unit, WeightLayout(*unit.run, program.weights())).first->second);
  return program;
}

void NativeEngine::add_layers(const Json &entries) {
  const Model &model = bundle_.model();
  for (const BundleChunk &chunk : bundle_.chunks()) {
    const LayerInfo &info = model.layers[chunk.first];
    ProgramShapes shapes;
    shapes.given = kLayerInputs;
    if (model.ropes[info.rope].beta != 0) shapes.given.insert(Input::query_scale);
    if (model.adapters > 0) shapes.given.insert(Input::adapter);
    shapes.hidden = model.hidden;
    shapes.kv_heads = info.kv_heads;
    shapes.head_dim = info.head_dim;
    shapes.rotary = static_cast<std::int64_t>(model.ropes[info.rope].inverse_frequency.size());
    Program &program = add_program(entries, info.program, shapes, 3);
    if (program.experts() != static_cast<std::int64_t>(chunk.experts.size())) {
      fail(EK_MALFORMED_FILE, bundle_.path(), ": program ", info.program, " mixes ", program.experts(),
           " experts, layer ", info.run, " has ", chunk.experts.size(), "; export the bundle again");
    }
    if (model.causal_prefix && !program.uses_mask()) {
      fail(EK_MALFORMED_FILE, bundle_.path(), ": program ", info.program,
           " takes no mask, without which a prefix cannot be encoded; export the bundle again");
    }
    program.expect(layouts_.emplace(chunk.unit, WeightLayout(*chunk.unit->run, program.weights())).first->second);
    for (const WeightUnit *expert : chunk.experts) {
      WeightLayout layout(*expert->run, program.expert_weights());
      program.expect_expert(layouts_.emplace(expert, std::move(layout)).first->second);
    }
    layers_.push_back(&program);
  }
}

EngineBytes NativeEngine::bytes(const EngineLengths &lengths) const {
  EngineBytes out;
  for (const auto &[name, program] : programs_) {
    out.scratch = std::max<std::uint64_t>(out.scratch, program.scratch_bytes(lengths.rows * lengths.segments, threads_));
  }
  out.head = head_->bytes(lengths, threads_);
  out.allowance = kAllowance + kAllowancePerThread * static_cast<std::uint64_t>(threads_);
  return out;
}

std::uint64_t NativeEngine::experts_wanted(const BundleChunk &chunk, const EngineLengths &lengths) const {
  return static_cast<std::uint64_t>(layers_[chunk.first]->experts_wanted(lengths.head_rows, lengths.segments));
}

void NativeEngine::open(const EngineLengths &lengths) {
  pool_ = std::make_unique<ThreadPool>(threads_);
  scratch_ = AlignedMemory(static_cast<std::size_t>(bytes(lengths).scratch));
}

void NativeEngine::run(const Program &program, const ProgramInputs &given, const BoundWeights &weights,
                       const ForEachExpert &experts, float *y) {
  const std::size_t wanted = program.scratch_bytes(given.positions, pool_->size());
  if (wanted > scratch_.size()) {
    scratch_ = AlignedMemory();  // not both at a time
    scratch_ = AlignedMemory(wanted);
  }
  program.run(*pool_, given, weights, experts, y, scratch_.data());
}

void NativeEngine::layers(const LayersCall &call) {
  ProgramInputs given;
  given.positions = call.rows;
  given.x = call.x;
  // Of all rows: those of a segment lie behind those of the one before.
  given.cos = call.segments.front().layers.front().cos;
  given.sin = call.segments.front().layers.front().sin;
  given.query_scale = call.segments.front().layers.front().query_scale;
  given.adapter = call.segments.front().layers.front().adapter;
  phase_.resize(static_cast<std::size_t>(call.rows));
  given.phase = phase_.data();
  for (const LayerSegment &segment : call.segments) {
    const LayerInputs &layer = segment.layers.front();
    std::fill_n(phase_.begin() + segment.first, segment.count, segment.causal ? 1 : 0);
    given.segments.push_back({segment.first, segment.count, layer.kept, layer.mask, layer.k, layer.v});
  }
  const ForEachExpert each = [&](const std::vector<std::int64_t> &rows,
                                 const std::function<void(const std::vector<LoadedExpert> &)> &use) {
    call.experts(rows, [&](const std::vector<LoadedExpertUnit> &batch) {
      std::vector<LoadedExpert> bound;
      for (const LoadedExpertUnit &each_one : batch) {
        bound.push_back({static_cast<std::int64_t>(each_one.index), bind(each_one.weights)});
      }
      use(bound);
    });
  };
  run(*layers_[call.chunk->first], given, bind(call.weights), each, call.x);
}

void NativeEngine::self_condition(const LoadedUnit &weights, std::int64_t rows, float *x, const float *soft) {
  ProgramInputs given;
  given.positions = rows;
  given.x = x;
  given.soft = soft;
  run(*self_conditioning_, given, bind(weights), {}, x);
}

void NativeEngine::final(const LoadedUnit &weights, std::int64_t rows, float *x) {
  ProgramInputs given;
  given.positions = rows;
  given.x = x;
  run(*final_, given, bind(weights), {}, x);
}

std::unique_ptr<HeadScores> NativeEngine::head(const float *x, std::int64_t rows, const HeadRequest &request,
                                               float *logits) {
  return head_->scores(*pool_, x, rows, request, logits);
}

}  // namespace edgekit
