#include "tvm/tvm_engine.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <utility>

#include "bundle_folder.h"
#include "error.h"
#include "executor/pieces.h"
#include "executor/program.h"
#include "kernels/gemm.h"

namespace edgekit {
namespace {

constexpr const char *kFormat = "tvm", *kLayout = "tvm-1";
constexpr std::int64_t kNaiveAllocator = 1;  // of TVM's machine: it gives back what is not used
// What nothing else counts: TVM's libraries and tables, stacks of threads, small allocations.
constexpr std::uint64_t kAllowance = std::uint64_t{32} << 20, kAllowancePerThread = std::uint64_t{256} << 10;
// Of blocks that are freed the heap keeps some: as much again as is in use, and one of the size up to which glibc's
// malloc may keep a block for the next time (DEFAULT_MMAP_THRESHOLD_MAX).
constexpr std::uint64_t kHeapBlock = std::uint64_t{32} << 20;

using tvm::Any;
using tvm::DLTensor;


// Whose program is running.
thread_local TvmEngine *current = nullptr;

class Current {
 public:
  explicit Current(TvmEngine *engine) : before_(std::exchange(current, engine)) {}
  ~Current() { current = before_; }
  Current(const Current &) = delete;
  Current &operator=(const Current &) = delete;

 private:
  TvmEngine *const before_;
};

// The call that is under way, while it is.
class CallGuard {
 public:
  CallGuard(const LayersCall *&place, const LayersCall &call) : place_(place) { place_ = &call; }
  ~CallGuard() { place_ = nullptr; }
  CallGuard(const CallGuard &) = delete;
  CallGuard &operator=(const CallGuard &) = delete;

 private:
  const LayersCall *&place_;
};

std::size_t rounded_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// Scratch memory of a mixture of `rows` rows.
struct MixtureMemory {
  MixtureMemory(const MixtureShape &shape, const RoutingRule &rule, std::int64_t rows, int threads, std::uint8_t *base)
      : pieces(base) {
    const std::int64_t chosen = rows * rule.chosen;
    index = pieces.take<std::int64_t>(chosen);
    weight = pieces.take<float>(chosen);
    wanted = static_cast<float *>(pieces.take_bytes(routing_bytes(rule, rows)));
    rounded = pieces.take_bytes(quantized_bytes(rows, shape.hidden));
    mixture = pieces.take_bytes(mixture_bytes(shape, rows, threads));
    gemm = pieces.take_bytes(gemm_scratch_bytes(threads));
  }

  Pieces pieces;
  std::int64_t *index;
  float *weight, *wanted;
  void *rounded, *mixture, *gemm;
};

// A number among the arguments of a function of ours.
double number_of(const Any &any) { return any.kind == tvm::kInt ? static_cast<double>(any.integer) : any.number; }

// Fails unless it is an array.
const DLTensor &array_of(const Any &any) {
  const DLTensor *tensor = tvm::tensor_of(any);
  if (tensor == nullptr) fail(EK_ENGINE_FAILED, "a program gives no array where one is expected; export the bundle again");
  return *tensor;
}

template <typename T>
T *data_of(const DLTensor &tensor) {
  return reinterpret_cast<T *>(static_cast<std::uint8_t *>(tensor.data) + tensor.byte_offset);
}

std::vector<std::int64_t> shape_of(const DLTensor &tensor) { return {tensor.shape, tensor.shape + tensor.ndim}; }

std::int64_t elements_of(const std::vector<std::int64_t> &shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

// Rows first..first+count of a contiguous array [1, heads, T, D].
Strided rows_of(const float *data, const std::vector<std::int64_t> &shape, std::int64_t first, std::int64_t count) {
  Strided out;
  const std::int64_t rows = shape[2], width = shape[3];
  out.data = const_cast<float *>(data) + first * width;
  const std::int64_t sizes[4] = {1, shape[1], count, width};
  const std::int64_t strides[4] = {shape[1] * rows * width, rows * width, width, 1};
  std::copy_n(sizes, 4, out.shape);
  std::copy_n(strides, 4, out.stride);
  return out;
}

// Moves [1, heads, count, D] from one layout to another.
void move(const Strided &from, const Strided &to) {
  for (std::int64_t h = 0; h < from.shape[1]; ++h) {
    for (std::int64_t t = 0; t < from.shape[2]; ++t) {
      std::memcpy(to.data + h * to.stride[1] + t * to.stride[2], from.data + h * from.stride[1] + t * from.stride[2],
                  sizeof(float) * static_cast<std::size_t>(from.shape[3]));
    }
  }
}

constexpr tvm::DLDataType kFloat32 = {2, 32, 1};

}  // namespace

// What a function is given by name, besides weights.
struct TvmEngine::Inputs {
  const float *x = nullptr, *cos = nullptr, *sin = nullptr, *query_scale = nullptr, *adapter = nullptr;
  const float *embedded = nullptr, *soft = nullptr;
  const float *q = nullptr, *k = nullptr, *v = nullptr, *prefix_k = nullptr, *prefix_v = nullptr, *mask = nullptr;
  const std::int64_t *phase = nullptr;

  const void *find(const std::string &name) const {
    const std::pair<const char *, const void *> known[] = {
        {"x", x}, {"cos", cos}, {"sin", sin}, {"query_scale", query_scale}, {"adapter", adapter}, {"embedded", embedded}, {"soft", soft},
        {"q", q}, {"k", k}, {"v", v}, {"prefix_k", prefix_k}, {"prefix_v", prefix_v}, {"mask", mask}, {"phase", phase}};
    for (const auto &[own, data] : known) {
      if (name == own) return data;
    }
    return nullptr;
  }
};

TvmEngine::TvmEngine(const Bundle &bundle, const Json &programs, int threads, bool planning)
    : bundle_(bundle), threads_(threads) {
  const auto is = [&](const char *key, const char *wanted) {
    const Json *json = programs.find(key);
    return json != nullptr && json->kind() == Json::Kind::string && json->string() == wanted;
  };
  if (!is("format", kFormat) || !is("layout", kLayout)) {
    fail(EK_UNSUPPORTED_BUNDLE, bundle.path(), ": its programs are not ", kFormat, "/", kLayout,
         ", which the tvm engine runs; export the bundle again for this engine");
  }
  if (bundle.packaged()) fail(EK_MALFORMED_FILE, bundle.path(), ": has packages, which the tvm engine does not open; export the bundle again");
  if (!is("kernels", "core") && !is("kernels", "compiled")) {
    fail(EK_UNSUPPORTED_BUNDLE, bundle.path(), ": takes kernels that this library does not know; export the bundle again");
  }
  core_ = is("kernels", "core");
  const Json &entries = programs.at("entries");
  head_ = std::make_unique<CoreHead>(bundle, entries.at("head"));
  add_layers(entries);
  const std::vector<std::int64_t> rows = {1, tvm::kT, bundle.model().hidden};
  check_unit(program(entries, "final").function, bundle.final(), {{{"x", rows}}, rows});
  if (const WeightUnit *unit = bundle.self_conditioning()) {
    check_unit(program(entries, "self_conditioning").function, *unit, {{{"embedded", rows}, {"soft", rows}}, rows});
  }
  if (!planning) load(programs);
}

TvmEngine::~TvmEngine() = default;

const tvm::Program &TvmEngine::program(const Json &entries, const std::string &name) {
  const auto found = programs_.find(name);
  if (found != programs_.end()) return found->second;
  return programs_.emplace(name, tvm::parse_program(bundle_.path(), name, entries.at(name), core_)).first->second;
}

void TvmEngine::check_unit(const tvm::Function &function, const WeightUnit &unit, const tvm::Expected &arrays) {
  tvm::check_arrays(bundle_.path(), function, arrays);
  tvm::check_weights(bundle_.path(), function, *unit.run);
  unit_bytes_ = std::max(unit_bytes_, unit.bytes);
}

void TvmEngine::check_attention(const tvm::Program &program, const LayerInfo &info) const {
  const tvm::Argument &queries = program.attention->inputs.front();  // of 4 axes
  if (queries.shape[1] < info.kv_heads || queries.shape[1] % info.kv_heads != 0) {
    fail(EK_MALFORMED_FILE, bundle_.path(), ": function ", program.attention->symbol, " has ", queries.shape[1],
         " heads of queries for ", info.kv_heads, " of keys; export the bundle again");
  }
  const std::vector<std::int64_t> q = {1, queries.shape[1], tvm::kT, info.head_dim};
  const std::vector<std::int64_t> kv = {1, info.kv_heads, tvm::kT, info.head_dim};
  const std::vector<std::int64_t> before = {1, info.kv_heads, tvm::kP, info.head_dim};
  tvm::Expected expected{{{"q", q}, {"k", kv}, {"v", kv}}, q};
  if (program.masked) expected.inputs["mask"] = {tvm::kT, tvm::kT};
  tvm::check_arrays(bundle_.path(), *program.attention, expected);
  expected.inputs["prefix_k"] = expected.inputs["prefix_v"] = before;
  if (program.masked) expected.inputs["mask"] = {tvm::kT, tvm::kS};
  tvm::check_arrays(bundle_.path(), *program.prefix_attention, expected);
}

void TvmEngine::add_layers(const Json &entries) {
  const Model &model = bundle_.model();
  for (const BundleChunk &chunk : bundle_.chunks()) {
    const std::string &name = model.layers[chunk.first].program;
    const tvm::Program &own = program(entries, name);
    const LayerInfo &info = model.layers[chunk.first];
    const std::int64_t rotary = static_cast<std::int64_t>(model.ropes[info.rope].inverse_frequency.size());
    const std::vector<std::int64_t> x = {1, tvm::kT, model.hidden}, turns = {tvm::kT, rotary};
    if (!own.layer) {
      fail(EK_MALFORMED_FILE, bundle_.path(), ": program ", name,
           " does not say whether its attention has a mask, as that of a layer must; export the bundle again");
    }
    if (own.attention) check_attention(own, info);
    const std::int64_t count = own.experts ? own.experts->count : 0;
    if (count != static_cast<std::int64_t>(chunk.experts.size())) {
      fail(EK_MALFORMED_FILE, bundle_.path(), ": program ", name, " mixes ", count, " experts, layer ", chunk.unit->name,
           " has ", chunk.experts.size(), "; export the bundle again");
    }
    if (model.causal_prefix && !own.masked) {
      fail(EK_MALFORMED_FILE, bundle_.path(), ": program ", name,
           " takes no mask, without which a prefix cannot be encoded; export the bundle again");
    }
    check_unit(own.function, *chunk.unit,
               {{{"x", x}, {"cos", turns}, {"sin", turns}, {"query_scale", {tvm::kT, 1}}, {"adapter", {tvm::kT, 1}},
                 {"phase", {tvm::kT}}}, x});
    Layer layer{&own, {}};
    if (own.experts) {
      const tvm::Experts &experts = *own.experts;
      layer.mixture = {count, experts.rule.chosen, model.hidden, experts.width, experts.activation, false, !core_};
      const std::vector<WeightShape> matrices = {{"gate_up", true, 2 * experts.width, model.hidden, 0},
                                                 {"down", true, model.hidden, experts.width, 0}};
      const std::vector<std::int64_t> routed = {tvm::kT, model.hidden};
      const tvm::Expected of_expert{{{"x", routed}}, routed};
      for (const WeightUnit *unit : chunk.experts) {
        if (!core_) {
          check_unit(*experts.one, *unit, of_expert);
          continue;
        }
        const WeightLayout &made = experts_.emplace(unit, WeightLayout(*unit->run, matrices)).first->second;
        for (std::size_t i = 0; i < matrices.size(); ++i) {
          (made.bits(i) == 16 ? layer.mixture.floating : layer.mixture.rounded) = true;
        }
      }
      for (const std::string &vector : {experts.bias, experts.factors}) {
        const Tensor *tensor = vector.empty() ? nullptr : chunk.unit->run->find(vector);
        if (!vector.empty() && (tensor == nullptr || tensor->dtype != "F32" || tensor->shape != std::vector<std::int64_t>{count})) {
          fail(EK_MALFORMED_FILE, bundle_.path(), ": layer ", chunk.unit->name, " has no ", count, " values ", vector,
               ", by which its rows are routed; export the bundle again");
        }
      }
    }
    layers_.push_back(layer);
  }
}

void TvmEngine::load(const Json &programs) {
  tvm::loaded();
  static std::once_flag once;
  std::call_once(once, provide);
  const BundleFolder files(bundle_.path());
  const std::string &name = programs.at("library").string(), &device = programs.at("device").string();
  if (device.rfind("cuda", 0) == 0) device_.type = tvm::kCuda;
  if (device.rfind("opencl", 0) == 0) device_.type = tvm::kOpenCl;
  if (device.rfind("metal", 0) == 0) device_.type = tvm::kMetal;
  if (device_.type != tvm::kCpu) {
    if (core_) {
      fail(EK_MALFORMED_FILE, bundle_.path(), ": the processor's kernels do not run on ", device,
           "; export the bundle again");
    }
    const std::string kind = device.substr(0, device.find('-'));
    if (const std::optional<std::string> why = tvm::load_device(kind)) {
      fail(EK_UNSUPPORTED_BUNDLE, bundle_.path(), ": its programs are for ", device, ", and TVM's runtime here has no ",
           kind, " (", *why, "); install what it lacks, or a build of TVM that has it");
    }
  }
  if (device_.type == tvm::kCuda) {
    static std::once_flag cubins;
    std::call_once(cubins, provide_cubin);
    const std::string &cubin = programs.at("cubin").string();
    cubin_.resize(static_cast<std::size_t>(files.size_of(cubin)));
    files.read(cubin, cubin_.data());
  }
  if (std::size_t at = name.rfind(".tar"); at != std::string::npos && at + 4 == name.size()) {
    fail(EK_UNSUPPORTED_BUNDLE, bundle_.path(), ": its programs are an archive of objects for ", device,
         ", which an application links; export for a device of this system to run it here");
  }
  // What was compared with the manifest is what is loaded: the file in the bundle may become another one meanwhile, and
  // loaders give the library of before to who opens another one at its path.
  std::string bytes(static_cast<std::size_t>(files.size_of(name)), '\0');
  files.read(name, bytes.data());
  file_ = std::make_unique<tvm::PrivateFile>(bytes, std::filesystem::u8path(name).extension().u8string());
  const Current guard(this);
  try {
    library_ = tvm::module_in(file_->path());
  } catch (const Error &error) {
    fail(EK_UNSUPPORTED_BUNDLE, bundle_.path(), ": ", name, " is compiled for ", device, " and cannot be loaded here (",
         error.what(), "); export it for this machine");
  }
  file_->remove();
  const tvm::Value machine = tvm::function_of(library_, "vm_load_executable");
  if (machine.none()) {
    fail(EK_MALFORMED_FILE, bundle_.path(), ": ", name, " holds no programs of TVM; export the bundle again");
  }
  machine_ = tvm::call(machine, {});
  std::vector<Any> devices;
  for (const tvm::DLDevice &each : {device_, tvm::DLDevice{tvm::kCpu, 0}}) {
    if (each.type == tvm::kCpu && !devices.empty() && device_.type == tvm::kCpu) continue;
    devices.push_back(tvm::integer(each.type));
    devices.push_back(tvm::integer(each.id));
    devices.push_back(tvm::integer(kNaiveAllocator));
  }
  tvm::call(tvm::function_of(machine_, "vm_initialization"), devices);
  for (const auto &[of, own] : programs_) {
    find(own.function);
    if (own.attention) {
      find(*own.attention);
      find(*own.prefix_attention);
    }
    if (own.experts && own.experts->one) find(*own.experts->one);
  }
}

void TvmEngine::find(const tvm::Function &function) {
  tvm::Value found = tvm::function_of(machine_, function.symbol);
  if (found.none()) {
    fail(EK_MALFORMED_FILE, bundle_.path(), ": its library has no function ", function.symbol, "; export the bundle again");
  }
  functions_.emplace(&function, std::move(found));
}

std::uint64_t TvmEngine::experts_wanted(const BundleChunk &chunk, const EngineLengths &lengths) const {
  const auto &experts = layers_[chunk.first].program->experts;
  if (!experts) return 0;
  const std::int64_t each = wanted_at_most(experts->rule, lengths.head_rows) * lengths.segments;
  return std::min<std::uint64_t>(chunk.experts.size(), static_cast<std::uint64_t>(each));
}

EngineBytes TvmEngine::bytes(const EngineLengths &lengths) const {
  const Model &model = bundle_.model();
  const std::int64_t rows = lengths.rows * lengths.segments;
  const std::uint64_t positions = static_cast<std::uint64_t>(rows);
  EngineBytes out;
  std::uint64_t live = 0;
  for (const auto &[name, own] : programs_) {
    // Inputs and the result besides: tables that are not aligned are copied.
    std::uint64_t floats = positions * (own.function.live_of_position + 2 * static_cast<std::uint64_t>(model.hidden)) +
                           own.function.live_besides;
    for (const tvm::Argument &input : own.function.inputs) {
      const std::optional<WeightShape> matrix = input.is_weight ? tvm::matrix_of(input) : std::nullopt;
      if (matrix) out.scratch = std::max<std::uint64_t>(out.scratch, rounded_up(quantized_bytes(rows, matrix->columns)));
    }
    if (own.attention) {
      const tvm::Argument &q = own.attention->inputs.front();
      const std::uint64_t seen = static_cast<std::uint64_t>(lengths.rows + lengths.prefix);
      floats += static_cast<std::uint64_t>(q.shape[1]) * static_cast<std::uint64_t>(lengths.rows) * 3 * seen +
                positions * own.attention->live_of_position + 2 * seen * own.attention->live_of_position;
    }
    if (own.experts && own.experts->one) {
      floats += positions * own.experts->one->live_of_position + own.experts->one->live_besides;
    }
    live = std::max(live, sizeof(float) * floats);
  }
  out.activations = 2 * live + kHeapBlock;
  out.scratch += rounded_up(gemm_scratch_bytes(threads_));
  for (const LayerInfo &layer : model.layers) {
    out.scratch = std::max<std::uint64_t>(out.scratch, attention_scratch_bytes(threads_, layer.head_dim));
  }
  for (const Layer &layer : layers_) {
    if (!layer.program->experts) continue;
    const MixtureMemory memory(layer.mixture, layer.program->experts->rule, rows, threads_, nullptr);
    out.scratch = std::max<std::uint64_t>(out.scratch, memory.pieces.used());
  }
  if (!core_) out.scratch += 2 * unit_bytes_;  // copies of weights on the device
  out.head = head_->bytes(lengths, threads_);
  out.allowance = kAllowance + kAllowancePerThread * static_cast<std::uint64_t>(threads_);
  return out;
}

void TvmEngine::open(const EngineLengths &) { pool_ = std::make_unique<ThreadPool>(threads_); }

std::uint8_t *TvmEngine::scratch(std::size_t bytes) {
  if (bytes > scratch_.size()) {
    scratch_ = AlignedMemory();  // not both at a time
    scratch_ = AlignedMemory(bytes);
  }
  return scratch_.data();
}

// An input as TVM takes it: where it is if it is aligned, else a copy; on a device always a copy.
tvm::Value TvmEngine::array(const void *data, const tvm::DLDataType &dtype, const std::vector<std::int64_t> &shape,
                       std::size_t place) {
  const std::size_t bytes = static_cast<std::size_t>(elements_of(shape)) * dtype.bits / 8;
  if (reinterpret_cast<std::uintptr_t>(data) % 64 != 0) {
    if (staged_.size() <= place) staged_.resize(place + 1);
    if (staged_[place].size() < bytes) staged_[place] = AlignedMemory(bytes);
    std::memcpy(staged_[place].data(), data, bytes);
    data = staged_[place].data();
  }
  tvm::Value made = tvm::view(data, dtype, shape);
  if (core_) return made;
  tvm::Value there = tvm::allocate(dtype, shape, device_);
  tvm::copy(made.any(), there.any(), device_);
  return there;
}

tvm::Value TvmEngine::run(const tvm::Function &function, const tvm::Lengths &lengths, const LoadedUnit &weights,
                     const Inputs &given) {
  std::vector<tvm::Value> arrays;
  for (const tvm::Argument &input : function.inputs) {
    const void *data;
    if (input.is_weight) {
      data = weights.data + weights.unit->run->find(input.name)->offset;
    } else if ((data = given.find(input.name)) == nullptr) {
      fail(EK_MALFORMED_FILE, bundle_.path(), ": function ", function.symbol, " takes ", input.name,
           ", which is no input of it; export the bundle again");
    }
    arrays.push_back(array(data, input.dtype, input.sizes(lengths), arrays.size()));
  }
  std::vector<Any> arguments;
  for (const tvm::Value &each : arrays) arguments.push_back(each.any());
  const Current guard(this);
  const tvm::Value results = tvm::call(functions_.at(&function), std::move(arguments));
  if (results.any().kind != tvm::kArray) {
    fail(EK_ENGINE_FAILED, bundle_.path(), ": function ", function.symbol, " gives no results; export the bundle again");
  }
  tvm::Value result = tvm::element(results, 0);
  const DLTensor *made = result.tensor();
  if (made == nullptr || made->dtype.code != 2 || made->dtype.bits != 32 || shape_of(*made) != function.output.sizes(lengths)) {
    fail(EK_ENGINE_FAILED, bundle_.path(), ": function ", function.symbol,
         " gives other than it says; export the bundle again");
  }
  return result;
}

// A result, in the processor's memory.
void TvmEngine::read(const tvm::Value &result, float *to, std::int64_t count) const {
  if (elements_of(shape_of(*result.tensor())) != count) {
    fail(EK_ENGINE_FAILED, bundle_.path(), ": a program's result is of another size than the model's; export the bundle again");
  }
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(count);
  if (device_.type == tvm::kCpu) {
    std::memcpy(to, data_of<float>(*result.tensor()), bytes);
    return;
  }
  AlignedMemory memory(std::max<std::size_t>(bytes, 64));
  const tvm::Value here = tvm::view(memory.data(), kFloat32, shape_of(*result.tensor()));
  tvm::copy(result.any(), here.any(), device_);
  std::memcpy(to, memory.data(), bytes);
}

void TvmEngine::layers(const LayersCall &call) {
  const tvm::Program &program = *layers_[call.chunk->first].program;
  std::vector<std::int64_t> phase(static_cast<std::size_t>(call.rows));
  for (const LayerSegment &segment : call.segments) {
    std::fill_n(phase.begin() + segment.first, segment.count, segment.causal ? 1 : 0);
  }
  // Tables of all rows: those of a segment lie behind those of the one before.
  const LayerInputs &first = call.segments.front().layers.front();
  Inputs given;
  given.x = call.x;
  given.cos = first.cos;
  given.sin = first.sin;
  given.query_scale = first.query_scale;
  given.adapter = first.adapter;
  given.phase = phase.data();
  const CallGuard guard(call_, call);
  const tvm::Value y = run(program.function, {call.rows, 0}, call.weights, given);
  read(y, call.x, call.rows * bundle_.model().hidden);
}

void TvmEngine::one(const std::string &name, const LoadedUnit &weights, std::int64_t rows, const Inputs &given, float *y) {
  read(run(programs_.at(name).function, {rows, 0}, weights, given), y, rows * bundle_.model().hidden);
}

void TvmEngine::self_condition(const LoadedUnit &weights, std::int64_t rows, float *x, const float *soft) {
  Inputs given;
  given.embedded = x;
  given.soft = soft;
  one("self_conditioning", weights, rows, given, x);
}

void TvmEngine::final(const LoadedUnit &weights, std::int64_t rows, float *x) {
  Inputs given;
  given.x = x;
  one("final", weights, rows, given, x);
}

std::unique_ptr<HeadScores> TvmEngine::head(const float *x, std::int64_t rows, const HeadRequest &request,
                                            float *logits) {
  return head_->scores(*pool_, x, rows, request, logits);
}

// --- what programs call ---------------------------------------------------------------------------------------------

void TvmEngine::provide() {
  const auto add = [](const char *name, void (TvmEngine::*function)(const std::vector<Any> &)) {
    tvm::provide(name, [function](const std::vector<Any> &arguments) {
      if (current == nullptr) fail(EK_INVALID_STATE, "a program of edgekit's is run by something else");
      (current->*function)(arguments);
      return tvm::Value();
    });
  };
  add("edgekit.linear", &TvmEngine::linear);
  add("edgekit.attention", &TvmEngine::attention);
  add("edgekit.experts", &TvmEngine::experts);
}

// TVM keeps the source of kernels for NVIDIA GPUs, and asks for what it compiles to: the bundle has it. Others that ask
// get what they got before.
void TvmEngine::provide_cubin() {
  const char *name = "tvm_callback_cuda_compile";
  const auto before = std::make_shared<tvm::Value>(tvm::global(name));
  tvm::provide(name, [before](const std::vector<Any> &arguments) {
    if (current != nullptr && !current->cubin_.empty()) return tvm::bytes(current->cubin_);
    return tvm::call(*before, arguments);
  });
}

void TvmEngine::linear(const std::vector<Any> &arguments) {
  if (arguments.size() < 4) fail(EK_ENGINE_FAILED, "a product has too few arguments; export the bundle again");
  const DLTensor &x = array_of(arguments[1]), &codes = array_of(arguments[2]), &out = array_of(arguments.back());
  if (x.ndim != 2 || out.ndim != 2 || x.shape[0] != out.shape[0]) {
    fail(EK_ENGINE_FAILED, "a product has arrays of other sizes; export the bundle again");
  }
  const std::size_t stored = arguments.size() - 3;
  Matrix matrix;
  matrix.bits = stored == 1 ? 16 : stored == 2 ? 8 : 4;
  matrix.rows = out.shape[1];
  matrix.columns = x.shape[1];
  matrix.codes = data_of<std::uint8_t>(codes);
  if (matrix.bits == 4) {
    const DLTensor &groups = array_of(arguments[3]);
    matrix.group_scales = data_of<std::uint8_t>(groups);
    matrix.group = matrix.columns / groups.shape[1];
  }
  if (matrix.bits < 16) matrix.scales = data_of<float>(array_of(arguments[arguments.size() - 2]));
  const std::int64_t rows = x.shape[0];
  const bool rounds = matrix.bits < 16 && number_of(arguments[0]) == 8;
  const std::size_t rounded_bytes = rounds ? quantized_bytes(rows, matrix.columns) : 0;
  Pieces sizes;
  sizes.take_bytes(rounded_bytes);
  sizes.take_bytes(gemm_scratch_bytes(pool_->size()));
  Pieces pieces(scratch(sizes.used()));
  void *codes_of_x = pieces.take_bytes(rounded_bytes), *gemm = pieces.take_bytes(gemm_scratch_bytes(pool_->size()));
  float *y = data_of<float>(out);
  const float *from = data_of<float>(x);
  if (rounds) {
    const QuantizedRows rounded = quantize_rows(*pool_, from, matrix.columns, rows, matrix.columns, codes_of_x);
    edgekit::linear(*pool_, matrix, rounded, y, matrix.rows, {}, gemm);
  } else {
    linear_float(*pool_, matrix, from, matrix.columns, rows, y, matrix.rows, {}, gemm);
  }
}

void TvmEngine::attention(const std::vector<Any> &arguments) {
  if (call_ == nullptr || arguments.size() != 5) {
    fail(EK_ENGINE_FAILED, "attention is not a layer's, or has other arguments; export the bundle again");
  }
  std::vector<const DLTensor *> qkv;
  for (std::size_t i = 1; i < 4; ++i) qkv.push_back(&array_of(arguments[i]));
  const DLTensor &out = array_of(arguments[4]);
  const LayerInfo &info = bundle_.model().layers[call_->chunk->first];
  for (const DLTensor *each : {qkv[0], qkv[1], qkv[2], &out}) {
    const bool query = each == qkv[0] || each == &out;
    const std::int64_t heads = each->ndim == 4 ? each->shape[1] : 0;
    const bool right = !query ? heads == info.kv_heads
                       : core_ ? heads > 0 && heads % info.kv_heads == 0 && heads == qkv[0]->shape[1]
                               : heads == layers_[call_->chunk->first].program->attention->inputs.front().shape[1];
    const bool fits = right && each->shape[0] == 1 && each->shape[2] == call_->rows && each->shape[3] == info.head_dim;
    if (!fits) fail(EK_ENGINE_FAILED, "attention has arrays of other sizes than the layer's; export the bundle again");
  }
  // In the processor's memory.
  std::vector<AlignedMemory> memory;
  std::vector<DLTensor> near;
  for (const DLTensor *each : qkv) near.push_back(*each);
  if (device_.type != tvm::kCpu) {
    for (std::size_t i = 0; i < near.size(); ++i) {
      const std::vector<std::int64_t> shape = shape_of(near[i]);
      memory.emplace_back(sizeof(float) * static_cast<std::size_t>(elements_of(shape)));
      const tvm::Value here = tvm::view(memory.back().data(), kFloat32, shape);
      tvm::copy(arguments[i + 1], here.any(), device_);
      near[i].data = memory.back().data();
      near[i].byte_offset = 0;
      qkv[i] = &near[i];
    }
  }
  for (const LayerSegment &segment : call_->segments) {
    const LayerInputs &own = segment.layers.front();
    for (const auto &[from, to] : {std::pair{qkv[1], own.k}, std::pair{qkv[2], own.v}}) {
      if (to.data != nullptr) move(rows_of(data_of<float>(*from), shape_of(*from), segment.first, segment.count), to);
    }
  }
  if (core_) return core_attention(qkv, static_cast<float>(number_of(arguments[0])), data_of<float>(out));
  const std::vector<std::int64_t> shape = shape_of(out);
  AlignedMemory made(sizeof(float) * static_cast<std::size_t>(elements_of(shape)));
  compiled_attention(qkv, reinterpret_cast<float *>(made.data()));
  const tvm::Value from = tvm::view(made.data(), kFloat32, shape);
  tvm::copy(from.any(), arguments[4], device_);
}

void TvmEngine::core_attention(const std::vector<const DLTensor *> &qkv, float scale, float *y) {
  const tvm::Program &program = *layers_[call_->chunk->first].program;
  const std::vector<std::int64_t> q = shape_of(*qkv[0]), kv = shape_of(*qkv[1]);
  std::uint8_t *memory = scratch(attention_scratch_bytes(pool_->size(), q[3]));
  for (const LayerSegment &segment : call_->segments) {
    const LayerInputs &own = segment.layers.front();
    std::vector<KeyPiece> pieces = own.kept;
    pieces.push_back({rows_of(data_of<float>(*qkv[1]), kv, segment.first, segment.count),
                      rows_of(data_of<float>(*qkv[2]), kv, segment.first, segment.count)});
    edgekit::attention(*pool_, rows_of(data_of<float>(*qkv[0]), q, segment.first, segment.count), pieces,
                       program.masked ? own.mask : nullptr, scale, rows_of(y, q, segment.first, segment.count), memory);
  }
}

void TvmEngine::compiled_attention(const std::vector<const DLTensor *> &qkv, float *y) {
  const tvm::Program &program = *layers_[call_->chunk->first].program;
  const std::vector<std::int64_t> q = shape_of(*qkv[0]), kv = shape_of(*qkv[1]);
  for (const LayerSegment &segment : call_->segments) {
    const LayerInputs &own = segment.layers.front();
    const std::int64_t p = own.kept_rows, t = segment.count;
    std::vector<AlignedMemory> parts;
    const auto gathered = [&](std::int64_t heads, std::int64_t rows, std::int64_t width) {
      parts.emplace_back(std::max<std::size_t>(64, sizeof(float) * static_cast<std::size_t>(heads * rows * width)));
      return reinterpret_cast<float *>(parts.back().data());
    };
    const auto own_rows = [&](const DLTensor &from, const std::vector<std::int64_t> &shape) {
      float *to = gathered(shape[1], t, shape[3]);
      move(rows_of(data_of<float>(from), shape, segment.first, t), rows_of(to, {1, shape[1], t, shape[3]}, 0, t));
      return to;
    };
    const auto before = [&](bool keys) {
      float *to = gathered(kv[1], p, kv[3]);
      std::int64_t first = 0;
      for (const KeyPiece &piece : own.kept) {
        const Strided &from = keys ? piece.keys : piece.values;
        move(from, rows_of(to, {1, kv[1], p, kv[3]}, first, from.shape[2]));
        first += from.shape[2];
      }
      return to;
    };
    Inputs given;
    given.q = own_rows(*qkv[0], q);
    given.k = own_rows(*qkv[1], kv);
    given.v = own_rows(*qkv[2], kv);
    given.prefix_k = before(true);
    given.prefix_v = before(false);
    given.mask = own.mask;
    if (program.masked && own.mask == nullptr) {  // nothing is hidden
      float *zeros = gathered(1, t, p + t);
      std::fill_n(zeros, t * (p + t), 0.0f);
      given.mask = zeros;
    }
    const tvm::Function &function = p == 0 ? *program.attention : *program.prefix_attention;
    const tvm::Value made = run(function, {t, p}, call_->weights, given);
    float *result = gathered(q[1], t, q[3]);
    read(made, result, q[1] * t * q[3]);
    move(rows_of(result, {1, q[1], t, q[3]}, 0, t), rows_of(y, q, segment.first, t));
  }
}

void TvmEngine::experts(const std::vector<Any> &arguments) {
  if (call_ == nullptr || arguments.size() != 3 || !layers_[call_->chunk->first].program->experts) {
    fail(EK_ENGINE_FAILED, "a mixture of experts is not the layer's; export the bundle again");
  }
  const Layer &layer = layers_[call_->chunk->first];
  const tvm::Experts &own = *layer.program->experts;
  const DLTensor &x = array_of(arguments[0]), &logits = array_of(arguments[1]), &out = array_of(arguments[2]);
  const std::int64_t rows = x.shape[0], hidden = bundle_.model().hidden;
  if (x.shape[1] != hidden || logits.shape[0] != rows || logits.shape[1] != own.count) {
    fail(EK_ENGINE_FAILED, "a mixture of experts has arrays of other sizes; export the bundle again");
  }
  AlignedMemory near[2], made;
  const auto here = [&](std::size_t i, const DLTensor &from) {
    if (device_.type == tvm::kCpu) return data_of<float>(from);
    near[i] = AlignedMemory(sizeof(float) * static_cast<std::size_t>(elements_of(shape_of(from))));
    const tvm::Value to = tvm::view(near[i].data(), kFloat32, shape_of(from));
    tvm::copy(arguments[i], to.any(), device_);
    return reinterpret_cast<float *>(near[i].data());
  };
  const float *given = here(0, x), *wanted = here(1, logits);
  float *y = data_of<float>(out);
  if (device_.type != tvm::kCpu) {
    made = AlignedMemory(sizeof(float) * static_cast<std::size_t>(elements_of(shape_of(out))));
    y = reinterpret_cast<float *>(made.data());
  }
  const MixtureMemory memory(layer.mixture, own.rule, rows, pool_->size(),
                             scratch(MixtureMemory(layer.mixture, own.rule, rows, pool_->size(), nullptr).pieces.used()));
  const auto vector = [&](const std::string &name) {
    const LoadedUnit &unit = call_->weights;
    return name.empty() ? nullptr : reinterpret_cast<const float *>(unit.data + unit.unit->run->find(name)->offset);
  };
  const auto run = [&](std::int64_t first, std::int64_t count) {
    route(*pool_, own.rule, wanted + first * own.count, vector(own.bias), vector(own.factors), count, memory.wanted,
          memory.index + first * own.rule.chosen, memory.weight + first * own.rule.chosen);
  };
  if (own.rule.capacity == 0) {
    run(0, rows);
  } else {  // blocks are of one text
    for (const LayerSegment &segment : call_->segments) run(segment.first, segment.count);
  }
  if (core_) {
    QuantizedRows rounded;
    if (layer.mixture.rounded) rounded = quantize_rows(*pool_, given, hidden, rows, hidden, memory.rounded);
    const ForEachExpert each = [&](const std::vector<std::int64_t> &counts,
                                   const std::function<void(const std::vector<LoadedExpert> &)> &use) {
      call_->experts(counts, [&](const std::vector<LoadedExpertUnit> &batch) {
        std::vector<LoadedExpert> bound;
        for (const LoadedExpertUnit &expert : batch) {
          bound.push_back({static_cast<std::int64_t>(expert.index), {experts_.at(expert.weights.unit), expert.weights.data}});
        }
        use(bound);
      });
    };
    mixture(*pool_, layer.mixture, rows, given, layer.mixture.rounded ? &rounded : nullptr, memory.index, memory.weight,
            each, y, memory.mixture, memory.gemm);
    return;
  }
  std::unordered_map<std::size_t, LoadedUnit> at_hand;
  const EachNumber each = [&](const std::vector<std::int64_t> &counts, const std::function<void(std::size_t)> &use) {
    call_->experts(counts, [&](const std::vector<LoadedExpertUnit> &batch) {
      for (const LoadedExpertUnit &expert : batch) {
        at_hand[expert.index] = expert.weights;
        use(expert.index);
      }
    });
  };
  mixture_of(*pool_, layer.mixture, rows, given, memory.index, memory.weight, each,
             [&](std::size_t expert, const float *from, std::int64_t count, float *to) {
               Inputs own_rows;
               own_rows.x = from;
               read(this->run(*own.one, {count, 0}, at_hand.at(expert), own_rows), to, count * hidden);
             },
             y, memory.mixture);
  if (device_.type != tvm::kCpu) {
    const tvm::Value from = tvm::view(y, kFloat32, shape_of(out));
    tvm::copy(from.any(), arguments[2], device_);
  }
}

}  // namespace edgekit
