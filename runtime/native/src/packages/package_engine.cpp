#include "packages/package_engine.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "error.h"
#include "kernels/noise.h"
#include "packages/half.h"
#include "session/head_join.h"

namespace edgekit {
namespace {

// What hides a key: within float16, and as good as minus infinity for scores there.
constexpr float kMasked = -3e4f;
// Of what goes in and out: as it is, padded, and as the executor has it.
constexpr std::uint64_t kCopies = 3;
// Outputs of a layer's matrices that live at a time, in widths of the model.
constexpr std::uint64_t kWidths = 32;
// What is allocated later and nothing else counts: programs, stacks of threads.
constexpr std::uint64_t kAllowance = std::uint64_t{48} << 20;

// Rows of a matrix [rows, width] at the start of one of `function_rows`, zeros behind them.
void put_rows(const float *from, std::int64_t rows, std::int64_t width, std::int64_t function_rows, float *to) {
  const std::size_t count = static_cast<std::size_t>(rows * width);
  std::copy_n(from, count, to);
  std::fill_n(to + count, static_cast<std::size_t>((function_rows - rows) * width), 0.0f);
}

// Pieces [1, KV, some, D], one behind the other, at the start of [1, KV, prefix, D].
void put_keys(const std::vector<KeyPiece> &pieces, bool values, std::int64_t heads, std::int64_t prefix, std::int64_t width,
              float *to) {
  for (std::int64_t h = 0; h < heads; ++h) {
    float *next = to + h * prefix * width;
    float *const end = next + prefix * width;
    for (const KeyPiece &piece : pieces) {
      const Strided &own = values ? piece.values : piece.keys;
      for (std::int64_t i = 0; i < own.shape[2]; ++i, next += width) {
        std::copy_n(own.data + h * own.stride[1] + i * own.stride[2], static_cast<std::size_t>(width), next);
      }
    }
    std::fill(next, end, 0.0f);
  }
}

// The additive mask [rows, prefix + rows] of a function for `count` rows that see `kept` others. Padded rows see what the
// last one sees: a row that sees nothing would be an average of everything, whatever lies there.
void put_mask(const float *mask, std::int64_t count, std::int64_t kept, std::int64_t prefix, std::int64_t rows, float *to) {
  const std::int64_t width = prefix + rows;
  for (std::int64_t i = 0; i < count; ++i) {
    float *const row = to + i * width;
    std::fill_n(row, static_cast<std::size_t>(width), kMasked);
    const float *const own = mask == nullptr ? nullptr : mask + i * (kept + count);
    const auto put = [&](std::int64_t from, std::int64_t until, std::int64_t at) {
      for (std::int64_t j = from; j < until; ++j) row[at + j - from] = own == nullptr ? 0.0f : std::max(own[j], kMasked);
    };
    put(0, kept, 0);
    put(kept, kept + count, prefix);
  }
  for (std::int64_t i = count; i < rows; ++i) std::copy_n(to + (count - 1) * width, static_cast<std::size_t>(width), to + i * width);
}

}  // namespace

// The arrays of one call of a function.
class PackageEngine::Call {
 public:
  Call(const PackageFunction &function, std::vector<std::vector<float>> &inputs, std::vector<std::vector<float>> &outputs)
      : function(function) {
    const auto place = [](const std::vector<Port> &ports, std::vector<std::vector<float>> &arrays, std::vector<void *> &out) {
      arrays.resize(std::max(arrays.size(), ports.size()));
      for (std::size_t i = 0; i < ports.size(); ++i) {
        if (arrays[i].size() < ports[i].elements) arrays[i].resize(ports[i].elements);
        out.push_back(arrays[i].data());
      }
    };
    place(function.inputs, inputs, in);
    place(function.outputs, outputs, out);
  }

  // Calls fill(port, array) for every input.
  template <typename Fill>
  void fill(Fill &&fill) {
    for (std::size_t i = 0; i < function.inputs.size(); ++i) fill(function.inputs[i], static_cast<float *>(in[i]));
  }

  // Floats become what the function takes, and what it has given floats.
  void narrow() { convert(function.inputs, in, narrow_in_place); }
  void widen() { convert(function.outputs, out, widen_in_place); }

  // An output; null where the function has none.
  const float *output(Role role, std::size_t slot = 0) const {
    for (std::size_t i = 0; i < function.outputs.size(); ++i) {
      const Port &port = function.outputs[i];
      if (port.role == role && port.slot == slot) return static_cast<const float *>(out[i]);
    }
    return nullptr;
  }

  const PackageFunction &function;
  std::vector<void *> in, out;

 private:
  static void convert(const std::vector<Port> &ports, const std::vector<void *> &arrays, void (*all)(float *, std::size_t)) {
    for (std::size_t i = 0; i < ports.size(); ++i) {
      if (ports[i].type == PortType::float16) all(static_cast<float *>(arrays[i]), ports[i].elements);
    }
  }
};

PackageEngine::PackageEngine(const Bundle &bundle, const Json &programs, int threads, MakeExecutor make)
    : bundle_(bundle),
      threads_(threads),
      programs_(bundle, programs),
      mixtures_(bundle),
      make_(std::move(make)),
      opener_([this](const std::string &name) { return open_package(name); }) {
  if (bundle.scores().front().unit->run != nullptr) core_head_ = std::make_unique<CoreHead>(bundle, programs.at("head"));
  if (const Json *entries = programs.find("mixtures")) add_mixtures(*entries);
}

void PackageEngine::add_mixtures(const Json &entries) {
  const Model &model = bundle_.model();
  for (const BundleChunk &chunk : bundle_.chunks()) {
    if (chunk.mixture == nullptr) continue;
    const std::string &name = model.layers[chunk.first].mixture_program;
    const std::size_t dense = programs_.of(*chunk.unit).dense;
    ProgramShapes shapes;
    shapes.hidden = model.hidden;
    shapes.given = {Input::x, Input::phase};
    if (model.adapters > 0) shapes.given.insert(Input::adapter);
    shapes.given.insert(std::begin(kDenseInputs), std::begin(kDenseInputs) + std::min(dense, std::size(kDenseInputs)));
    mixture_of_[chunk.unit] = &mixtures_.add(entries, name, shapes, 1);
    mixtures_.expect(name, *chunk.mixture);
    mixtures_.expect_experts(name, chunk);
  }
}

PackageEngine::~PackageEngine() = default;

// What lies between inputs and outputs, of which packages do not tell the sizes: scores of attention and outputs of
// matrices. What a system makes of a package besides its bytes is its own.
EngineBytes PackageEngine::bytes(const EngineLengths &lengths) const {
  const Model &model = bundle_.model();
  std::uint64_t most = 0, heads = 0;
  std::int64_t rows = lengths.rows;
  for (const auto &[name, package] : programs_.all()) {
    for (const PackageFunction &function : package.functions) {
      std::uint64_t elements = 0;
      for (const Port &port : function.inputs) elements += port.elements;
      for (const Port &port : function.outputs) elements += port.elements;
      most = std::max(most, kCopies * sizeof(float) * elements);
    }
  }
  for (const auto &[t, p] : programs_.lengths()) rows = std::max(rows, t);
  std::size_t dense = 0;
  for (const auto &[name, package] : programs_.all()) dense = std::max(dense, package.dense);
  for (const LayerInfo &layer : model.layers) {
    heads = std::max(heads, static_cast<std::uint64_t>(std::max(layer.kv_heads, model.hidden / layer.head_dim)));
  }
  const std::uint64_t positions = static_cast<std::uint64_t>(rows), hidden = static_cast<std::uint64_t>(model.hidden);
  const std::uint64_t seen = static_cast<std::uint64_t>(lengths.rows + lengths.prefix);
  const std::uint64_t layer = sizeof(float) * positions * (kCopies * heads * seen + kWidths * hidden);
  EngineBytes out;
  out.allowance = kAllowance;
  const std::int64_t pass = lengths.rows * lengths.segments;
  if (!mixture_of_.empty()) out.scratch = mixtures_.scratch_bytes(pass, threads_);
  most += sizeof(float) * dense * static_cast<std::uint64_t>(pass) * hidden;
  if (core_head_ != nullptr) {
    out.activations = most + layer;
    out.head = core_head_->bytes(lengths, threads_);
    return out;
  }
  const std::uint64_t tile = sizeof(float) * kCopies * positions * static_cast<std::uint64_t>(bundle_.largest_tile());
  out.activations = most + std::max(layer, tile);
  out.head = static_cast<std::uint64_t>(lengths.segments) *
             HeadJoin::bytes(lengths.head_rows, model.hidden, bundle_.largest_tile(), 1, model.self_conditioning,
                             std::min(kMostCandidates, model.vocabulary));
  return out;
}

std::uint64_t PackageEngine::experts_wanted(const BundleChunk &chunk, const EngineLengths &lengths) const {
  const auto found = mixture_of_.find(chunk.unit);
  if (found == mixture_of_.end()) return chunk.experts.size();
  return static_cast<std::uint64_t>(found->second->experts_wanted(lengths.head_rows, lengths.segments));
}

void PackageEngine::open(const EngineLengths &lengths) {
  files_ = std::make_unique<BundleFolder>(bundle_.path());
  executor_ = make_(programs_);
  if (!computes()) return;
  pool_ = std::make_unique<ThreadPool>(threads_);
  mixtures_.reserve(bytes(lengths).scratch);
}

// Files are compared with their checksums before a system parses them, the first time: some end the process over one that
// they cannot read. The functions called when the package was last open are made ready.
std::unique_ptr<OpenPackage> PackageEngine::open_package(const std::string &name) {
  const Package &package = programs_.all().at(name);
  std::vector<const PackageFunction *> expected;
  bool known = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    expected = called_[name];
    known = compared_.count(name) != 0;
  }
  if (!known) {
    Compared found;
    for (const std::string &file : executor_->files(package)) found.emplace_back(file, files_->check(file));
    std::lock_guard<std::mutex> lock(mutex_);
    compared_.emplace(name, std::move(found));
  }
  std::unique_ptr<OpenPackage> opened = executor_->open(package, expected);
  require_unchanged(name);
  return opened;
}

void PackageEngine::require_unchanged(const std::string &package) {
  const Compared *compared = nullptr;  // stays as and where it is once it is there
  {
    std::lock_guard<std::mutex> lock(mutex_);
    compared = &compared_.at(package);
  }
  for (const auto &[file, identity] : *compared) files_->require_unchanged(file, identity);
}

void PackageEngine::run(const Package &package, Call &call) {
  call.narrow();
  opener_.opened(package.name).call(call.function, call.in, call.out);
  call.widen();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const std::vector<const PackageFunction *> &called = called_[package.name];
    if (std::find(called.begin(), called.end(), &call.function) != called.end()) return;
  }
  require_unchanged(package.name);  // as it may have been opened for this call
  std::lock_guard<std::mutex> lock(mutex_);
  called_[package.name].push_back(&call.function);
}

void PackageEngine::too_long(const Package &package, std::int64_t rows, std::int64_t kept) const {
  const auto [t, p] = programs_.lengths().back();
  const std::string behind = kept > 0 ? " after a prefix of " + std::to_string(kept) : "";
  const std::string after = p > 0 ? " after " + std::to_string(p) : kept > 0 ? " after none" : "";
  const std::string fewer = kept > p && rows <= t ? "" : "ask for fewer new tokens, ";
  fail(EK_PROMPT_TOO_LONG, bundle_.path(), ": ", rows, " positions", behind, " are more than package ", package.name,
       " was exported for; its programs take at most ", t, after,
       " positions: ", fewer, "shorten the prompt, or export with longer --lengths");
}

const PackageFunction &PackageEngine::fitting(const Package &package, std::int64_t rows,
                                              const std::vector<std::int64_t> &kept) const {
  const PackageFunction *found = nullptr;
  for (const PackageFunction &each : package.functions) {
    bool fits = each.rows >= rows;
    for (std::size_t i = 0; i < kept.size(); ++i) fits = fits && each.prefixes[i] >= kept[i];
    const auto smaller = [](const PackageFunction &a, const PackageFunction &b) {
      return std::make_pair(a.rows, a.prefix) < std::make_pair(b.rows, b.prefix);
    };
    if (fits && (found == nullptr || smaller(each, *found))) found = &each;
  }
  if (found == nullptr) too_long(package, rows, kept.empty() ? 0 : *std::max_element(kept.begin(), kept.end()));
  return *found;
}

const PackageFunction &PackageEngine::fitting_head(const Package &package, std::int64_t rows, const HeadForm &form) const {
  const PackageFunction *found = nullptr;
  bool offered = false;
  for (const PackageFunction &each : package.functions) {
    if (each.samples != form.samples || each.soft != form.soft || each.logits != form.logits) continue;
    offered = true;
    if (each.rows >= rows && (found == nullptr || each.rows < found->rows)) found = &each;
  }
  if (!offered) {
    fail(EK_UNSUPPORTED_BUNDLE, bundle_.path(), ": package ", package.name, " has no function head",
         form.samples ? "_sample" : "", form.soft ? "_soft" : "", form.logits ? "_logits" : "", "; export the bundle again");
  }
  if (found == nullptr) too_long(package, rows, 0);
  return *found;
}

void PackageEngine::check_rows(std::int64_t rows, std::int64_t kept) const {
  for (const BundleChunk &chunk : bundle_.chunks()) {
    std::vector<std::int64_t> seen;
    for (std::size_t i = chunk.first; i < chunk.first + chunk.count; ++i) {
      const std::int64_t window = bundle_.model().layers[i].window;
      seen.push_back(window == 0 ? kept : std::min(kept, window - 1));
    }
    fitting(programs_.of(*chunk.unit), rows, seen);
  }
}

void PackageEngine::layers(const LayersCall &call) {
  const std::size_t dense = programs_.of(*call.weights.unit).dense;
  std::vector<const float *> products;
  dense_.resize(std::max(dense_.size(), dense));
  for (std::size_t i = 0; i < dense; ++i) {
    dense_[i].resize(static_cast<std::size_t>(call.rows * bundle_.model().hidden));
    products.push_back(dense_[i].data());
  }
  for (const LayerSegment &segment : call.segments) layers_of_segment(call, segment);
  const auto mixture = mixture_of_.find(call.weights.unit);
  if (mixture != mixture_of_.end()) mixtures_.run_layer(*pool_, *mixture->second, call, call.mixture, std::move(products));
}

void PackageEngine::layers_of_segment(const LayersCall &given, const LayerSegment &segment) {
  const Model &model = bundle_.model();
  const Package &package = programs_.of(*given.weights.unit);
  const std::int64_t count = segment.count, hidden = model.hidden;
  std::vector<std::int64_t> kept;
  for (const LayerInputs &layer : segment.layers) kept.push_back(layer.kept_rows);
  const PackageFunction &function = fitting(package, count, kept);
  float *const x = given.x + segment.first * hidden;
  Call call(function, inputs_, outputs_);
  call.fill([&](const Port &port, float *to) {
    const LayerInputs &own = segment.layers[port.slot];
    const LayerInfo &info = model.layers[own.layer];
    const std::int64_t prefix = function.prefixes[port.slot];
    const auto table = [&](const float *from) { put_rows(from, count, port.shape[1], function.rows, to); };
    switch (port.role) {
      case Role::x: return put_rows(x, count, hidden, function.rows, to);
      case Role::prefix_keys: return put_keys(own.kept, false, info.kv_heads, prefix, info.head_dim, to);
      case Role::prefix_values: return put_keys(own.kept, true, info.kv_heads, prefix, info.head_dim, to);
      case Role::mask: return put_mask(own.mask, count, own.kept_rows, prefix, function.rows, to);
      case Role::cos: return table(own.cos);
      case Role::sin: return table(own.sin);
      case Role::query_scale: return table(own.query_scale);
      case Role::adapter: return table(own.adapter);
      case Role::phase: {
        const std::int32_t phase = segment.causal ? 1 : 0;
        if (port.type == PortType::int32) {
          std::memcpy(to, &phase, sizeof phase);
        } else {
          *to = static_cast<float>(phase);
        }
        return;
      }
      default: fail(EK_INTERNAL, "a program of layers takes what only others do; please report it");
    }
  });
  run(package, call);
  for (std::size_t i = 0; i < package.dense; ++i) {
    std::copy_n(call.output(Role::dense, i), static_cast<std::size_t>(count * hidden), dense_[i].data() + segment.first * hidden);
  }
  if (package.dense == 0) std::copy_n(call.output(Role::y), static_cast<std::size_t>(count * hidden), x);
  for (std::size_t slot = 0; slot < segment.layers.size(); ++slot) {
    const LayerInputs &own = segment.layers[slot];
    const LayerInfo &info = model.layers[own.layer];
    const auto keep = [&](const Strided &to, const float *from) {
      if (to.data == nullptr) return;
      for (std::int64_t h = 0; h < info.kv_heads; ++h) {
        for (std::int64_t i = 0; i < count; ++i) {
          std::copy_n(from + (h * function.rows + i) * info.head_dim, static_cast<std::size_t>(info.head_dim),
                      to.data + h * to.stride[1] + i * to.stride[2]);
        }
      }
    };
    keep(own.k, call.output(Role::keys, slot));
    keep(own.v, call.output(Role::values, slot));
  }
}

void PackageEngine::self_condition(const LoadedUnit &weights, std::int64_t rows, float *x, const float *soft) {
  replace_rows(weights, rows, x, soft);
}

void PackageEngine::final(const LoadedUnit &weights, std::int64_t rows, float *x) { replace_rows(weights, rows, x, nullptr); }

void PackageEngine::replace_rows(const LoadedUnit &weights, std::int64_t rows, float *x, const float *soft) {
  const Package &package = programs_.of(*weights.unit);
  const std::int64_t hidden = bundle_.model().hidden;
  const PackageFunction &function = fitting(package, rows, {});
  Call call(function, inputs_, outputs_);
  call.fill([&](const Port &port, float *to) {
    put_rows(port.role == Role::soft ? soft : x, rows, hidden, function.rows, to);
  });
  run(package, call);
  std::copy_n(call.output(Role::y), static_cast<std::size_t>(rows * hidden), x);
}

class PackageEngine::Head final : public HeadScores {
 public:
  Head(PackageEngine &engine, const float *x, std::int64_t rows, const HeadRequest &request, float *logits)
      : engine_(engine),
        x_(x),
        rows_(rows),
        request_(request),
        scores_(request.top_k > 0 || logits != nullptr),
        results_(rows, engine.bundle_.model().hidden, request),
        join_(rows, engine.bundle_.model().hidden, engine.bundle_.model().vocabulary, request, logits) {}

  void add(const BundleTile &tile, const LoadedUnit &loaded) override {
    const Package &package = engine_.programs_.of(*loaded.unit);
    HeadForm form;
    form.samples = request_.gumbel.has_value();
    form.soft = request_.soft;
    take(called(package, form, tile));
    if (scores_) {
      HeadForm logits;
      logits.logits = true;
      const Call call = called(package, logits, tile);
      const float *z = call.output(Role::z);
      results_.z.assign(z, z + rows_ * tile.tokens);
    }
    join_.add(tile.first, tile.tokens, results_);
  }

  HeadResult result() override { return join_.result(); }

 private:
  Call called(const Package &package, const HeadForm &form, const BundleTile &tile) {
    const PackageFunction &function = engine_.fitting_head(package, rows_, form);
    Call call(function, engine_.inputs_, engine_.outputs_);
    call.fill([&](const Port &port, float *to) {
      if (port.role == Role::x) return put_rows(x_, rows_, engine_.bundle_.model().hidden, function.rows, to);
      if (port.role == Role::temperature) return void(*to = request_.temperature);
      put_noise(tile, function.rows, to);
    });
    engine_.run(package, call);
    return call;
  }

  // Noise is made in the order of the tokens, [tokens, rows].
  void put_noise(const BundleTile &tile, std::int64_t function_rows, float *to) {
    noise_.resize(static_cast<std::size_t>(rows_ * tile.tokens));
    const GumbelDraw &draw = *request_.gumbel;
    gumbel_noise(draw.seed, draw.draw, static_cast<std::uint64_t>(tile.first * rows_), rows_ * tile.tokens, noise_.data());
    for (std::int64_t i = 0; i < rows_; ++i) {
      for (std::int64_t j = 0; j < tile.tokens; ++j) to[i * tile.tokens + j] = noise_[static_cast<std::size_t>(j * rows_ + i)] * draw.scale;
    }
    std::fill(to + rows_ * tile.tokens, to + function_rows * tile.tokens, 0.0f);
  }

  void take(const Call &call) {
    const auto floats = [&](Role role, std::vector<float> &to) {
      const float *from = call.output(role);
      if (from != nullptr) std::copy_n(from, to.size(), to.begin());
    };
    const auto tokens = [&](Role role, std::vector<std::int64_t> &to) {
      const float *from = call.output(role);
      if (from == nullptr) return;
      for (std::size_t i = 0; i < to.size(); ++i) {
        std::int32_t token = 0;
        std::memcpy(&token, from + i, sizeof token);
        to[i] = token;
      }
    };
    floats(Role::largest, results_.largest);
    tokens(Role::argmax, results_.argmax);
    floats(Role::sum_others, results_.sum_others);
    floats(Role::sum_z_others, results_.sum_z_others);
    floats(Role::score, results_.score);
    tokens(Role::sample, results_.sample);
    floats(Role::sample_z, results_.sample_z);
    floats(Role::soft, results_.soft);
  }

  PackageEngine &engine_;
  const float *x_;
  const std::int64_t rows_;
  const HeadRequest &request_;
  const bool scores_;
  std::vector<float> noise_;
  TileResults results_;
  HeadJoin join_;
};

std::unique_ptr<HeadScores> PackageEngine::head(const float *x, std::int64_t rows, const HeadRequest &request,
                                                float *logits) {
  if (core_head_ != nullptr) return core_head_->scores(*pool_, x, rows, request, logits);
  return std::make_unique<Head>(*this, x, rows, request, logits);
}

}  // namespace edgekit
