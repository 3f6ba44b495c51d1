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

// What calls of layers give; a rope and an adapter may add to it.
const std::set<Input> kLayerInputs = {Input::x,   Input::prefix_k, Input::prefix_v, Input::cos,
                                      Input::sin, Input::mask,     Input::phase};

}  // namespace

NativeEngine::NativeEngine(Bundle &bundle, int threads) : bundle_(bundle), threads_(threads), programs_(bundle) {
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

const Program &NativeEngine::single(const Json &entries, const std::string &name, const WeightUnit &unit,
                                    std::set<Input> given) {
  ProgramShapes shapes;
  shapes.given = std::move(given);
  shapes.hidden = bundle_.model().hidden;
  const Program &program = programs_.add(entries, name, shapes, 1);
  programs_.expect(name, unit);
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
    const Program &program = programs_.add(entries, info.program, shapes, 3);
    if (model.causal_prefix && !program.uses_mask()) {
      fail(EK_MALFORMED_FILE, bundle_.path(), ": program ", info.program,
           " takes no mask, without which a prefix cannot be encoded; export the bundle again");
    }
    programs_.expect(info.program, *chunk.unit);
    programs_.expect_experts(info.program, chunk);
    layers_.push_back(&program);
  }
}

EngineBytes NativeEngine::bytes(const EngineLengths &lengths) const {
  EngineBytes out;
  out.scratch = programs_.scratch_bytes(lengths.rows * lengths.segments, threads_);
  out.head = head_->bytes(lengths, threads_);
  out.allowance = kAllowance + kAllowancePerThread * static_cast<std::uint64_t>(threads_);
  return out;
}

std::uint64_t NativeEngine::experts_wanted(const BundleChunk &chunk, const EngineLengths &lengths) const {
  return static_cast<std::uint64_t>(layers_[chunk.first]->experts_wanted(lengths.head_rows, lengths.segments));
}

void NativeEngine::open(const EngineLengths &lengths) {
  pool_ = std::make_unique<ThreadPool>(threads_);
  programs_.reserve(bytes(lengths).scratch);
}

void NativeEngine::layers(const LayersCall &call) {
  programs_.run_layer(*pool_, *layers_[call.chunk->first], call, call.weights);
}

void NativeEngine::self_condition(const LoadedUnit &weights, std::int64_t rows, float *x, const float *soft) {
  ProgramInputs given;
  given.positions = rows;
  given.x = x;
  given.soft = soft;
  programs_.run(*pool_, *self_conditioning_, given, weights, x);
}

void NativeEngine::final(const LoadedUnit &weights, std::int64_t rows, float *x) {
  ProgramInputs given;
  given.positions = rows;
  given.x = x;
  programs_.run(*pool_, *final_, given, weights, x);
}

std::unique_ptr<HeadScores> NativeEngine::head(const float *x, std::int64_t rows, const HeadRequest &request,
                                               float *logits) {
  return head_->scores(*pool_, x, rows, request, logits);
}

}  // namespace edgekit
