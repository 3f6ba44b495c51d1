#include "session/plugged_engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "abi_flash.h"
#include "error.h"
#include "session/head_join.h"
#include "session/weights_in_use.h"

namespace edgekit {
namespace {

// So few that sums of them are numbers.
constexpr std::uint64_t kTooManyBytes = std::uint64_t{1} << 60;

class PluggedHead final : public HeadScores {
 public:
  PluggedHead(PluggedEngine &engine, const float *x, std::int64_t rows, const HeadRequest &request, float *logits)
      : engine_(engine),
        x_(x),
        count_(rows),
        request_(request),
        scores_(request.top_k > 0 || logits != nullptr),
        results_(engine.submits() ? 2 : 1, TileResults(rows, engine.bundle().model().hidden, request)),
        ends_(engine),
        join_(rows, engine.bundle().model().hidden, engine.bundle().model().vocabulary, request, logits) {}

  void add(const BundleTile &tile, const LoadedUnit &loaded) override {
    const ek_weights weights = engine_.weights(loaded);
    TileResults &results = results_[next_];
    if (scores_) results.z.resize(static_cast<std::size_t>(count_ * tile.tokens));
    const auto data = [](auto &array) { return array.empty() ? nullptr : array.data(); };
    ek_tile_call call{};
    call.struct_size = sizeof call;
    call.weights = &weights;
    call.first_token = tile.first;
    call.tokens = tile.tokens;
    call.rows = count_;
    call.hidden_size = engine_.bundle().model().hidden;
    call.x = x_;
    call.temperature = request_.temperature;
    if (request_.gumbel) {
      call.gumbel = 1;
      call.gumbel_scale = request_.gumbel->scale;
      call.seed = request_.gumbel->seed;
      call.draw = request_.gumbel->draw;
    }
    call.largest = data(results.largest);
    call.argmax = data(results.argmax);
    call.sum_others = data(results.sum_others);
    call.sum_z_others = data(results.sum_z_others);
    call.score = data(results.score);
    call.sample = data(results.sample);
    call.sample_z = data(results.sample_z);
    call.soft = data(results.soft);
    call.z = data(results.z);
    engine_.tile(call);
    settle();
    behind_ = {&tile, &results, engine_.submitted()};
    if (engine_.submits()) {
      next_ = 1 - next_;
    } else {
      settle();
    }
  }

  HeadResult result() override {
    settle();
    return join_.result();
  }

 private:
  // A tile that is not joined yet, while the next one is submitted.
  struct Behind {
    const BundleTile *tile = nullptr;
    const TileResults *results = nullptr;
    std::uint64_t until = 0;
  };

  void settle() {
    if (behind_.tile == nullptr) return;
    const Behind own = std::exchange(behind_, {});
    engine_.wait(own.until);
    join_.add(own.tile->first, own.tile->tokens, *own.results);
  }

  PluggedEngine &engine_;
  const float *x_;
  const std::int64_t count_;
  const HeadRequest &request_;
  const bool scores_;
  std::vector<TileResults> results_;
  WorkEnds ends_;  // before the results go
  std::size_t next_ = 0;
  Behind behind_;
  HeadJoin join_;
};

}  // namespace

class PluggedEngine::Memory final : public EngineMemory {
 public:
  explicit Memory(PluggedEngine &engine) : engine_(engine) {}

  bool session() const override { return false; }

  std::unique_ptr<EngineBlock> allocate(std::int64_t floats) override {
    const ek_engine &table = engine_.table_;
    const std::uint64_t bytes = sizeof(float) * static_cast<std::uint64_t>(floats);
    void *data = nullptr;
    engine_.done(table.allocate(table.user, bytes, &data), "allocating", std::to_string(bytes) + " bytes");
    if (data == nullptr) {
      fail(EK_OUT_OF_MEMORY, engine_.bundle_.path(), ": the ", engine_.name_, " engine has no memory left for ", bytes,
           " bytes", engine_.said());
    }
    try {
      return std::make_unique<Block>(engine_, data, bytes);
    } catch (...) {
      table.release(table.user, data, bytes);
      throw;
    }
  }

  void copy(const std::vector<FloatCopy> &copies) override {
    std::vector<ek_copy> made;
    for (const FloatCopy &each : copies) {
      const std::int64_t width = sizeof(float);
      ek_copy copy{};
      copy.to = each.to;
      copy.from = each.from;
      copy.bytes = static_cast<std::uint64_t>(width * each.count);
      copy.blocks = each.blocks;
      copy.to_stride = width * each.to_stride;
      copy.from_stride = width * each.from_stride;
      copy.from_session = each.from_session ? 1 : 0;
      copy.to_session = each.to_session ? 1 : 0;
      made.push_back(copy);
    }
    const ek_engine &table = engine_.table_;
    engine_.begun(table.copy(table.user, made.data(), static_cast<std::int64_t>(made.size())), "copying", "hidden states or keys");
  }

  void finish() override { engine_.wait(engine_.submitted_); }

 private:
  class Block final : public EngineBlock {
   public:
    Block(PluggedEngine &engine, void *data, std::uint64_t bytes)
        : EngineBlock(data), engine_(engine), data_(data), bytes_(bytes) {}
    ~Block() override {
      try {
        engine_.wait(engine_.submitted_);
      } catch (const Error &error) {
        if (!engine_.failed_) engine_.failed_.emplace(error);
      } catch (...) {
        if (!engine_.failed_) engine_.failed_.emplace(EK_INTERNAL, "work of an engine could not be waited for");
      }
      engine_.table_.release(engine_.table_.user, data_, bytes_);
    }

   private:
    PluggedEngine &engine_;
    void *const data_;
    const std::uint64_t bytes_;
  };

  PluggedEngine &engine_;
};

PluggedEngine::PluggedEngine(const Bundle &bundle, const ek_engine &table)
    : bundle_(bundle), table_(table), name_(table.name == nullptr || *table.name == '\0' ? "unnamed" : table.name) {
  const auto needs = [&](bool function, const char *what) {
    if (!function) fail(EK_INVALID_ARGUMENT, "the engine \"", name_, "\" has no function ", what);
  };
  needs(table.get_bytes != nullptr, "get_bytes");
  needs(table.final != nullptr, "final");
  needs(table.tile != nullptr, "tile");
  if (bundle.self_conditioning() != nullptr) needs(table.self_condition != nullptr, "self_condition");
  bool experts = false, dense = false;
  for (const BundleChunk &chunk : bundle.chunks()) (chunk.experts.empty() ? dense : experts) = true;
  if (dense) needs(table.layers != nullptr, "layers");
  if (experts) {
    needs(table.route != nullptr && table.expert != nullptr && table.join != nullptr, "route, expert and join");
  }
  const int own = (table.allocate != nullptr) + (table.release != nullptr) + (table.copy != nullptr);
  if (own != 0 || table.wait != nullptr) {
    needs(own == 3, "allocate, release or copy: memory of its own needs all three, and so does work under way");
    own_memory_ = std::make_unique<Memory>(*this);
    memory_ = own_memory_.get();
  }
  if (table.lend != nullptr || table.take_back != nullptr) {
    needs(table.lend != nullptr && table.take_back != nullptr, "lend or take_back: memory of weights needs both");
  }
  if (bundle.packaged()) {
    fail(EK_UNSUPPORTED_BUNDLE, bundle.path(), ": its weights lie in packages, which the engine \"", name_,
         "\" cannot be given; ek_session_open_packages takes what runs them");
  }
}

PluggedEngine::~PluggedEngine() = default;

std::string PluggedEngine::said() const {
  const char *text = table_.last_error == nullptr ? nullptr : table_.last_error(table_.user);
  return text == nullptr || *text == '\0' ? std::string() : std::string(": ") + text;
}

void PluggedEngine::done(std::int32_t answer, const char *doing, const std::string &what) const {
  if (answer == EK_ENGINE_DONE) return;
  if (answer == EK_ENGINE_FULL) {
    fail(EK_ENGINE_FAILED, bundle_.path(), ": the ", name_, " engine says of ", doing, " ", what,
         " that it has no memory left, which only keep may say");
  }
  if (answer == EK_ENGINE_SUBMITTED) {
    fail(EK_ENGINE_FAILED, bundle_.path(), ": the ", name_, " engine says that ", doing, " ", what, " is under way, ",
         submits() ? "which must be done at once" : "but has no functions allocate, release, copy and wait");
  }
  fail(EK_ENGINE_FAILED, bundle_.path(), ": the ", name_, " engine failed in ", doing, " ", what, said());
}

void PluggedEngine::begun(std::int32_t answer, const char *doing, const std::string &what) {
  if (answer != EK_ENGINE_SUBMITTED || !submits()) return done(answer, doing, what);
  ++submitted_;
}

void PluggedEngine::wait(std::uint64_t count) {
  if (count > waited_) {
    waited_ = count;  // also where it fails
    if (failed_) {
      table_.wait(table_.user, count);
    } else {
      done(table_.wait(table_.user, count), "work", "that was under way");
    }
  }
  if (failed_) throw *std::exchange(failed_, std::nullopt);
}

EngineBytes PluggedEngine::bytes(const EngineLengths &lengths) const {
  ek_engine_bytes found{};
  found.struct_size = sizeof found;
  done(table_.get_bytes(table_.user, lengths.rows, lengths.prefix, lengths.segments, lengths.head_rows, &found), "counting",
       "its memory");
  const std::pair<const char *, std::uint64_t> stated[] = {{"activations", found.activations},
                                                           {"scratch", found.scratch},
                                                           {"head", found.head},
                                                           {"allowance", found.allowance},
                                                           {"weights", found.weights}};
  for (const auto &[what, size] : stated) {
    if (size < kTooManyBytes) continue;
    fail(EK_ENGINE_FAILED, bundle_.path(), ": the ", name_, " engine states ", size, " bytes of ", what,
         ", more than any computer has");
  }
  const Model &model = bundle_.model();
  EngineBytes out{found.activations, found.scratch, found.head, found.allowance, table_.keep == nullptr ? 0 : found.weights};
  const std::uint64_t join = HeadJoin::bytes(lengths.head_rows, model.hidden, bundle_.largest_tile(), submits() ? 2 : 1,
                                             model.self_conditioning, std::min(kMostCandidates, model.vocabulary));
  out.head += join * static_cast<std::uint64_t>(lengths.segments);
  return out;
}

ek_weights PluggedEngine::weights(const LoadedUnit &loaded) {
  ek_weights out{};
  out.unit = loaded.unit->name.c_str();
  out.bytes = loaded.unit->bytes;
  out.data = loaded.data;
  const Run *run = loaded.unit->run;
  if (run == nullptr) return out;
  std::vector<ek_flash_tensor> &tensors = tensors_[run];
  if (tensors.empty()) {
    for (const Tensor &own : run->tensors) tensors.push_back(flash_tensor_of(own));
  }
  out.tensors = tensors.data();
  out.tensor_count = static_cast<std::int64_t>(tensors.size());
  return out;
}

void PluggedEngine::layers(const LayersCall &call) {
  const Model &model = bundle_.model();
  // Reserved at once: what points into them stays.
  std::vector<std::vector<ek_keys>> pieces;
  std::vector<std::vector<ek_attention>> attention;
  std::vector<ek_segment> segments;
  pieces.reserve(call.segments.size() * call.chunk->count);
  for (const LayerSegment &given : call.segments) {
    attention.emplace_back();
    for (const LayerInputs &layer : given.layers) {
      pieces.emplace_back();
      for (const KeyPiece &piece : layer.kept) {
        pieces.back().push_back({piece.keys.data, piece.values.data, piece.keys.shape[2], piece.keys.stride[1]});
      }
      const LayerInfo &info = model.layers[layer.layer];
      const Rope &rope = model.ropes[info.rope];
      ek_attention made{};
      made.layer = static_cast<std::int64_t>(layer.layer);
      made.kv_heads = info.kv_heads;
      made.head_dim = info.head_dim;
      made.window = info.window;
      made.kept = layer.kept_rows;
      made.pieces = pieces.back().data();
      made.piece_count = static_cast<std::int64_t>(pieces.back().size());
      made.cos = layer.cos;
      made.sin = layer.sin;
      made.frequencies = static_cast<std::int64_t>(rope.inverse_frequency.size());
      made.rope = rope.name.c_str();
      made.query_scale = layer.query_scale;
      made.adapter = layer.adapter;
      made.mask = layer.mask;
      made.k = layer.k.data;
      made.v = layer.v.data;
      made.own_stride = layer.k.stride[1];
      attention.back().push_back(made);
    }
    ek_segment segment{};
    segment.first_row = given.first;
    segment.count = given.count;
    segment.causal = given.causal ? 1 : 0;
    segment.layers = attention.back().data();
    segments.push_back(segment);
  }
  const ek_weights weights = this->weights(call.weights);
  const std::string &program = model.layers[call.chunk->first].program;
  ek_layers_call made{};
  made.struct_size = sizeof made;
  made.program = program.c_str();
  made.weights = &weights;
  made.rows = call.rows;
  made.hidden_size = model.hidden;
  made.x = call.x;
  made.first_layer = static_cast<std::int64_t>(call.chunk->first);
  made.layer_count = static_cast<std::int64_t>(call.chunk->count);
  made.segment_count = static_cast<std::int64_t>(segments.size());
  made.segments = segments.data();
  made.experts = static_cast<std::int64_t>(call.chunk->experts.size());
  made.inputs = call.inputs;
  if (made.experts == 0) return begun(table_.layers(table_.user, &made), "program", program);

  std::vector<std::int64_t> counts(call.chunk->experts.size(), 0);
  done(table_.route(table_.user, &made, counts.data()), "program", program);
  for (std::size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] >= 0 && counts[e] <= call.rows) continue;
    fail(EK_ENGINE_FAILED, bundle_.path(), ": the ", name_, " engine routes ", counts[e], " of ", call.rows,
         " rows to expert ", e, " in program ", program, "; export the bundle again");
  }
  call.experts(counts, [&](const std::vector<LoadedExpertUnit> &batch) {
    for (const LoadedExpertUnit &expert : batch) {
      const ek_weights own = this->weights(expert.weights);
      begun(table_.expert(table_.user, &made, static_cast<std::int64_t>(expert.index), &own), "an expert of program",
            program);
    }
  });
  begun(table_.join(table_.user, &made), "program", program);
}

void PluggedEngine::self_condition(const LoadedUnit &loaded, std::int64_t rows, float *x, const float *soft) {
  const ek_weights own = weights(loaded);
  begun(table_.self_condition(table_.user, &own, rows, x, soft), "program", "self_conditioning");
}

void PluggedEngine::final(const LoadedUnit &loaded, std::int64_t rows, float *x) {
  const ek_weights own = weights(loaded);
  begun(table_.final(table_.user, &own, rows, x), "program", "final");
}

void PluggedEngine::tile(ek_tile_call &call) {
  begun(table_.tile(table_.user, &call), "the head's tile", call.weights->unit);
}

std::unique_ptr<HeadScores> PluggedEngine::head(const float *x, std::int64_t rows, const HeadRequest &request,
                                                float *logits) {
  return std::make_unique<PluggedHead>(*this, x, rows, request, logits);
}

void PluggedEngine::lend(const std::uint8_t *memory, std::uint64_t bytes) {
  if (table_.lend == nullptr) return;
  done(table_.lend(table_.user, memory, bytes), "taking", std::to_string(bytes) + " bytes of weights");
}

bool PluggedEngine::keep(const LoadedUnit &unit) {
  const ek_weights own = weights(unit);
  const std::int32_t answer = table_.keep(table_.user, &own);
  if (answer == EK_ENGINE_FULL) return false;
  done(answer, "keeping", unit.unit->name);
  return true;
}

void PluggedEngine::take_back(const std::uint8_t *memory, std::uint64_t bytes) noexcept {
  if (table_.take_back != nullptr) table_.take_back(table_.user, memory, bytes);
}

}  // namespace edgekit
