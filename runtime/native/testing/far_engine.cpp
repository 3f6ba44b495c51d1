// The native engine behind ek_engine, on another thread and with memory that the session cannot read: what a GPU's engine is
// to it, for tests in Python. Calls are queued, and done late.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "abi_guard.h"
#include "edgekit.h"
#include "far_memory.h"
#include "far_worker.h"
#include "kernels/noise.h"
#include "session/native_engine.h"

namespace edgekit_testing {
namespace {

using namespace edgekit;

constexpr std::uint32_t kOwnMemory = 1, kSubmits = 2, kLies = 4;

std::size_t bytes_of(std::int64_t floats) { return sizeof(float) * static_cast<std::size_t>(floats); }

class FarEngine {
 public:
  FarEngine(const std::string &folder, int threads, std::uint32_t mode, std::uint64_t seed, int most_microseconds)
      : mode_(mode), bundle_(folder), native_(bundle_, threads), worker_(seed, most_microseconds) {
    native_.open({1, 0, 1, 1});  // it grows as it must
    for (const WeightUnit *unit : bundle_.step_units()) units_.emplace(unit->name, unit);
  }

  ek_engine table();

  // The `nth` call of `function` from now on fails: when it is made, or when it is done.
  void fail_at(const std::string &function, std::int64_t nth, bool later) {
    failing_ = {function, nth, later};
  }

  std::int64_t count(const std::string &what) const {
    const std::map<std::string, std::uint64_t> counts = {
        {"blocks", memory_.blocks()}, {"allocated", allocated_}, {"submitted", serials_.size()},
        {"violations", violations_},  {"copied_inputs", copied_inputs_},
        {"behind", most_behind_},         {"lent", lent_.size()},
        {"loans", loans_},                {"kept", kept_.size()}};
    return static_cast<std::int64_t>(counts.at(what));
  }

  const char *last_error() const { return said_.c_str(); }

  int32_t get_bytes(std::int64_t rows, std::int64_t kept, std::int64_t segments, std::int64_t head_rows, ek_engine_bytes *out) {
    const EngineBytes found = native_.bytes({rows, kept, head_rows, segments});
    out->activations = found.activations;
    out->scratch = found.scratch;
    out->head = found.head;
    out->allowance = found.allowance;
    out->weights = room_;
    return EK_ENGINE_DONE;
  }

  int32_t layers(const ek_layers_call *call) {
    const std::shared_ptr<Layers> own = take(*call);
    return run("layers", true, [this, own] { compute(*own, {}); });
  }

  int32_t route(const ek_layers_call *call, std::int64_t *counts) {
    const std::shared_ptr<Layers> own = take(*call);
    return run("route", false, [this, own, counts] {
      compute(*own, [this, counts](const auto &rows, const auto &use) {
        std::copy(rows.begin(), rows.end(), counts);
        worker_.part_done();
        Job part = worker_.next_part();
        for (; part.step == Step::expert; part = worker_.next_part()) {
          use_ = &use;
          part.run();
          use_ = nullptr;
          worker_.part_done();
        }
        part.run();
      });
    });
  }

  int32_t expert(const ek_layers_call *call, std::int64_t expert, const ek_weights *weights) {
    const WeightUnit *unit = bundle_.chunks()[chunk_of(call->first_layer)].experts[static_cast<std::size_t>(expert)];
    const LoadedExpertUnit loaded{static_cast<std::size_t>(expert), {unit, data_of(*weights)}};
    return run("expert", true, [this, loaded] {
      if (use_ == nullptr) throw std::runtime_error("an expert without its layer");
      (*use_)({loaded});
    }, Step::expert);
  }

  int32_t join() {
    return run("join", true, [] {}, Step::join);
  }

  int32_t self_condition(const ek_weights *weights, std::int64_t rows, float *x, const float *soft) {
    const LoadedUnit loaded = this->loaded(*weights);
    return run("self_condition", true, [=] {
      native_.self_condition(loaded, rows, real(x, rows * hidden()), real(soft, rows * hidden()));
    });
  }

  int32_t final(const ek_weights *weights, std::int64_t rows, float *x) {
    const LoadedUnit loaded = this->loaded(*weights);
    return run("final", true, [=] { native_.final(loaded, rows, real(x, rows * hidden())); });
  }

  int32_t tile(const ek_tile_call *given) {
    const LoadedUnit loaded = this->loaded(*given->weights);
    const ek_tile_call call = *given;
    return run("tile", true, [this, loaded, call] { score(loaded, call); });
  }

  int32_t allocate(std::uint64_t bytes, void **memory) {
    if (strikes("allocate", false)) return failure("no memory is left");
    if (strikes("allocate", true)) return EK_ENGINE_DONE;
    *memory = memory_.allocate(static_cast<std::size_t>(bytes));
    ++allocated_;
    return EK_ENGINE_DONE;
  }

  void release(void *memory, std::uint64_t bytes) {
    if (!worker_.idle() || !memory_.release(memory, static_cast<std::size_t>(bytes))) ++violations_;
  }

  int32_t copy(const ek_copy *copies, std::int64_t count) {
    const auto own = std::make_shared<std::vector<ek_copy>>(copies, copies + count);
    const auto staged = std::make_shared<std::vector<std::vector<std::uint8_t>>>();
    for (ek_copy &each : *own) {
      if (each.to_session != 0 && (each.blocks != 1 || each.from_session != 0)) ++violations_;
      if (each.from_session == 0) continue;
      if (each.blocks != 1) ++violations_;
      const auto *from = static_cast<const std::uint8_t *>(each.from);
      staged->emplace_back(from, from + each.bytes);
      each.from = staged->back().data();
    }
    return run("copy", true, [this, own, staged] {
      for (const ek_copy &each : *own) copy_blocks(each);
    });
  }

  int32_t lend(const void *memory, std::uint64_t bytes) {
    if (strikes("lend", false)) return failure("an injected failure of lend");
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    const auto next = lent_.lower_bound(at);
    const bool overlaps = (next != lent_.end() && at + bytes > next->first) ||
                          (next != lent_.begin() && std::prev(next)->first + std::prev(next)->second > at);
    if (overlaps || bytes == 0) ++violations_;
    lent_[at] = bytes;
    ++loans_;
    return EK_ENGINE_DONE;
  }

  void take_back(const void *memory, std::uint64_t bytes) {
    const auto found = lent_.find(reinterpret_cast<std::uintptr_t>(memory));
    if (!worker_.idle() || found == lent_.end() || found->second != bytes) ++violations_;
    if (found != lent_.end()) lent_.erase(found);
  }

  // States room for weights, and has it for so many units.
  void have_room(std::uint64_t bytes, std::int64_t units) {
    room_ = bytes;
    most_kept_ = static_cast<std::size_t>(units);
  }

  int32_t keep(const ek_weights *weights) {
    if (strikes("keep", false)) return failure("an injected failure of keep");
    if (kept_.size() == most_kept_) return EK_ENGINE_FULL;
    std::uint64_t bytes = weights->bytes;
    for (const auto &each : kept_) bytes += each.second.size();
    if (bytes > room_ || kept_.count(weights->unit) != 0) ++violations_;
    const std::uint8_t *data = data_of(*weights);
    AlignedMemory &own = kept_.emplace(weights->unit, AlignedMemory(static_cast<std::size_t>(weights->bytes))).first->second;
    std::memcpy(own.data(), data, own.size());
    return EK_ENGINE_DONE;
  }

  int32_t wait(std::uint64_t count) {
    if (count <= waited_ || count > serials_.size()) ++violations_;
    most_behind_ = std::max<std::uint64_t>(most_behind_, serials_.size() - count);
    waited_ = count;
    const std::optional<std::string> failed = worker_.wait(serials_[count - 1]);
    if (failed) return failure(*failed);
    if (strikes("wait", false) || strikes("wait", true)) return failure("an injected failure of wait");
    return EK_ENGINE_DONE;
  }

 private:
  struct Failing {
    std::string function;
    std::int64_t nth = 0;
    bool later = false;
  };

  // A call, with what may be gone when it is done.
  struct Layers {
    LayersCall call;
    std::vector<float> cos, sin;
    std::vector<std::shared_ptr<const std::vector<float>>> masks;
  };

  bool own_memory() const { return (mode_ & kOwnMemory) != 0; }
  std::int64_t hidden() const { return bundle_.model().hidden; }
  LoadedUnit loaded(const ek_weights &weights) {
    return {units_.at(weights.unit), data_of(weights)};
  }

  // Weights lie where the session has said, or are kept.
  const std::uint8_t *data_of(const ek_weights &weights) {
    const auto kept = kept_.find(weights.unit);
    if (kept != kept_.end()) {
      if (weights.data != nullptr) ++violations_;
      return kept->second.data();
    }
    const auto at = reinterpret_cast<std::uintptr_t>(weights.data);
    auto next = lent_.upper_bound(at);
    if (next == lent_.begin() || (--next, at + weights.bytes > next->first + next->second)) ++violations_;
    return weights.data;
  }

  bool strikes(const std::string &function, bool later) {
    return failing_.function == function && failing_.later == later && failing_.nth > 0 && --failing_.nth == 0;
  }

  int32_t failure(const std::string &said) {
    said_ = said;
    return 0;
  }

  int32_t run(const std::string &function, bool may_submit, std::function<void()> job, Step step = Step::other) {
    if (strikes(function, false)) return failure("an injected failure of " + function);
    if (strikes(function, true)) job = [function] { throw std::runtime_error("a late failure of " + function); };
    const std::uint64_t serial = worker_.add(step, std::move(job));
    if (may_submit && (mode_ & kSubmits) != 0) {
      serials_.push_back(serial);
      return EK_ENGINE_SUBMITTED;
    }
    // The worker still has what else it works with.
    if ((mode_ & kLies) != 0 && function == "layers") return EK_ENGINE_DONE;
    const std::optional<std::string> failed = worker_.wait(serial);
    return failed ? failure(*failed) : EK_ENGINE_DONE;
  }

  template <typename Float>
  Float *real(Float *given, std::int64_t floats) const {
    if (!own_memory() || given == nullptr) return given;
    return static_cast<Float *>(memory_.real(given, bytes_of(floats)));
  }

  std::size_t chunk_of(std::int64_t layer) const {
    std::size_t chunk = 0;
    while (bundle_.chunks()[chunk].first != static_cast<std::size_t>(layer)) ++chunk;
    return chunk;
  }

  // As an engine would have it in a memory of its own: copied again when the session says that it may have changed.
  std::shared_ptr<const std::vector<float>> input(std::uint64_t inputs, const float *data, std::int64_t count) {
    if (inputs != inputs_) copied_.clear();
    inputs_ = inputs;
    std::shared_ptr<const std::vector<float>> &found = copied_[{data, count}];
    if (!found) {
      found = std::make_shared<std::vector<float>>(data, data + count);
      ++copied_inputs_;
    }
    return found;
  }

  static Strided strided(const float *data, std::int64_t heads, std::int64_t rows, std::int64_t width, std::int64_t stride) {
    Strided out;
    out.data = const_cast<float *>(data);
    const std::int64_t lengths[] = {1, heads, rows, width}, strides[] = {heads * stride, stride, width, 1};
    std::copy(lengths, lengths + 4, out.shape);
    std::copy(strides, strides + 4, out.stride);
    return out;
  }

  std::shared_ptr<Layers> take(const ek_layers_call &given) {
    auto out = std::make_shared<Layers>();
    LayersCall &call = out->call;
    call.chunk = &bundle_.chunks()[chunk_of(given.first_layer)];
    call.weights = loaded(*given.weights);
    call.rows = given.rows;
    call.x = given.x;
    for (std::int64_t s = 0; s < given.segment_count; ++s) {
      const ek_segment &segment = given.segments[s];
      const ek_attention &from = *segment.layers;
      LayerInputs layer;
      layer.layer = static_cast<std::size_t>(from.layer);
      layer.kept_rows = from.kept;
      for (std::int64_t p = 0; p < from.piece_count; ++p) {
        const ek_keys &piece = from.pieces[p];
        layer.kept.push_back({strided(piece.k, from.kv_heads, piece.count, from.head_dim, piece.stride),
                              strided(piece.v, from.kv_heads, piece.count, from.head_dim, piece.stride)});
      }
      for (const auto &[table, to] : {std::pair{from.cos, &out->cos}, std::pair{from.sin, &out->sin}}) {
        const auto own = input(given.inputs, table, segment.count * from.frequencies);
        to->insert(to->end(), own->begin(), own->end());
      }
      if (from.mask != nullptr) {
        out->masks.push_back(input(given.inputs, from.mask, segment.count * (from.kept + segment.count)));
        layer.mask = out->masks.back()->data();
      }
      if (from.k != nullptr) {
        layer.k = strided(from.k, from.kv_heads, segment.count, from.head_dim, from.own_stride);
        layer.v = strided(from.v, from.kv_heads, segment.count, from.head_dim, from.own_stride);
      }
      call.segments.push_back({segment.first_row, segment.count, segment.causal != 0, {layer}});
    }
    call.segments.front().layers.front().cos = out->cos.data();
    call.segments.front().layers.front().sin = out->sin.data();
    return out;
  }

  void make_real(Strided &rows) const {
    const std::int64_t floats = (rows.shape[1] - 1) * rows.stride[1] + rows.shape[2] * rows.shape[3];
    if (rows.data != nullptr) rows.data = real(rows.data, floats);
  }

  void compute(Layers &own, const EachExpert &experts) {
    own.call.x = real(own.call.x, own.call.rows * hidden());
    for (LayerSegment &segment : own.call.segments) {
      LayerInputs &layer = segment.layers.front();
      for (KeyPiece &piece : layer.kept) {
        make_real(piece.keys);
        make_real(piece.values);
      }
      make_real(layer.k);
      make_real(layer.v);
    }
    own.call.experts = experts;
    native_.layers(own.call);
  }

  void copy_blocks(const ek_copy &each) {
    for (std::int64_t i = 0; i < each.blocks; ++i) {
      const std::size_t bytes = static_cast<std::size_t>(each.bytes);
      auto *to = static_cast<std::uint8_t *>(each.to) + i * each.to_stride;
      if (each.to_session == 0) to = static_cast<std::uint8_t *>(memory_.real(to, bytes));
      const auto *from = static_cast<const std::uint8_t *>(each.from) + i * each.from_stride;
      if (each.from_session == 0) from = static_cast<const std::uint8_t *>(memory_.real(from, bytes));
      if (to < from + bytes && from < to + bytes) throw std::runtime_error("a copy overlaps what it reads");
      std::memcpy(to, from, bytes);
    }
  }

  // What ek_tile_call wants, of the native head over one tile.
  void score(const LoadedUnit &weights, const ek_tile_call &call) {
    const std::vector<BundleTile> &tiles = bundle_.scores();
    const BundleTile &tile = *std::find_if(tiles.begin(), tiles.end(),
                                           [&](const BundleTile &each) { return each.first == call.first_token; });
    HeadRequest request;
    request.temperature = call.temperature;
    request.soft = call.soft != nullptr;
    if (call.gumbel != 0) request.gumbel = GumbelDraw{call.seed, call.draw, call.gumbel_scale};
    const std::int64_t vocabulary = bundle_.model().vocabulary;
    std::vector<float> logits(static_cast<std::size_t>(call.rows * vocabulary));
    const auto head = native_.head(real(call.x, call.rows * hidden()), call.rows, request, logits.data());
    head->add(tile, weights);
    const HeadResult found = head->result();
    for (std::int64_t r = 0; r < call.rows; ++r) {
      const std::size_t row = static_cast<std::size_t>(r);
      const float *z = logits.data() + r * vocabulary + tile.first;
      // Of scores that are all NaN none is the largest.
      const auto in_tile = [&](std::int64_t token) { return std::clamp<std::int64_t>(token - tile.first, 0, tile.tokens - 1); };
      const std::int64_t argmax = in_tile(found.argmax[row]);
      double others = 0, z_others = 0;
      for (std::int64_t t = 0; t < tile.tokens; ++t) {
        const double e = t == argmax ? 0 : std::exp(static_cast<double>(z[t]) - static_cast<double>(z[argmax]));
        others += e;
        z_others += static_cast<double>(z[t]) * e;
      }
      call.largest[r] = z[argmax];
      call.argmax[r] = argmax;
      call.sum_others[r] = static_cast<float>(others);
      call.sum_z_others[r] = static_cast<float>(z_others);
      if (call.gumbel != 0) {
        const std::int64_t sample = in_tile(found.sample[row]);
        float noise = 0;
        gumbel_noise(call.seed, call.draw, static_cast<std::uint64_t>((tile.first + sample) * call.rows + r), 1, &noise);
        call.sample[r] = sample;
        call.sample_z[r] = z[sample];
        call.score[r] = call.sample_z[r] + call.gumbel_scale * noise;
      }
      for (std::int64_t i = 0; call.soft != nullptr && i < hidden(); ++i) {
        const std::size_t at = static_cast<std::size_t>(r * hidden() + i);
        call.soft[at] = static_cast<float>(static_cast<double>(found.soft[at]) * (1 + others));
      }
      if (call.z != nullptr) std::copy_n(z, tile.tokens, call.z + r * tile.tokens);
    }
  }

  const std::uint32_t mode_;
  Bundle bundle_;
  NativeEngine native_;
  std::unordered_map<std::string, const WeightUnit *> units_;
  FarMemory memory_;
  std::string said_;
  Failing failing_;
  std::vector<std::uint64_t> serials_;  // of the calls that were submitted
  std::uint64_t waited_ = 0, most_behind_ = 0, allocated_ = 0, violations_ = 0, copied_inputs_ = 0, inputs_ = 0,
                loans_ = 0;
  std::map<std::uintptr_t, std::uint64_t> lent_;
  std::map<std::string, AlignedMemory> kept_;
  std::uint64_t room_ = 0;
  std::size_t most_kept_ = 0;
  std::map<std::pair<const float *, std::int64_t>, std::shared_ptr<const std::vector<float>>> copied_;
  const std::function<void(const std::vector<LoadedExpertUnit> &)> *use_ = nullptr;  // of the layer at work
  FarWorker worker_;  // ends first
};

FarEngine &self(void *user) { return *static_cast<FarEngine *>(user); }

ek_engine FarEngine::table() {
  ek_engine out{};
  out.struct_size = sizeof out;
  out.name = "far";
  out.user = this;
  out.get_bytes = [](void *user, int64_t rows, int64_t kept, int64_t segments, int64_t head_rows, ek_engine_bytes *bytes) {
    return self(user).get_bytes(rows, kept, segments, head_rows, bytes);
  };
  out.layers = [](void *user, const ek_layers_call *call) { return self(user).layers(call); };
  out.route = [](void *user, const ek_layers_call *call, int64_t *counts) { return self(user).route(call, counts); };
  out.expert = [](void *user, const ek_layers_call *call, int64_t expert, const ek_weights *weights) {
    return self(user).expert(call, expert, weights);
  };
  out.join = [](void *user, const ek_layers_call *) { return self(user).join(); };
  out.self_condition = [](void *user, const ek_weights *weights, int64_t rows, float *x, const float *soft) {
    return self(user).self_condition(weights, rows, x, soft);
  };
  out.final = [](void *user, const ek_weights *weights, int64_t rows, float *x) {
    return self(user).final(weights, rows, x);
  };
  out.tile = [](void *user, const ek_tile_call *call) { return self(user).tile(call); };
  out.last_error = [](void *user) { return self(user).last_error(); };
  out.lend = [](void *user, const void *memory, uint64_t bytes) { return self(user).lend(memory, bytes); };
  out.take_back = [](void *user, const void *memory, uint64_t bytes) { self(user).take_back(memory, bytes); };
  out.keep = [](void *user, const ek_weights *weights) { return self(user).keep(weights); };
  if (own_memory()) {
    out.allocate = [](void *user, uint64_t bytes, void **memory) { return self(user).allocate(bytes, memory); };
    out.release = [](void *user, void *memory, uint64_t bytes) { self(user).release(memory, bytes); };
    out.copy = [](void *user, const ek_copy *copies, int64_t count) { return self(user).copy(copies, count); };
    if ((mode_ & kSubmits) != 0) out.wait = [](void *user, uint64_t count) { return self(user).wait(count); };
  }
  return out;
}

}  // namespace
}  // namespace edgekit_testing

extern "C" {

using edgekit_testing::FarEngine;

// `mode`: 1 memory of its own, 2 calls return before they are done, which needs 1, 4 layers are said to be done while they are
// under way. Jobs wait up to `most_microseconds` at random.
EK_API ek_status ekt_far_open(const char *bundle, int32_t threads, uint32_t mode, uint64_t seed, int32_t most_microseconds,
                              void **engine) {
  return edgekit::guarded([&] { *engine = new FarEngine(bundle, threads, mode, seed, most_microseconds); });
}

EK_API void ekt_far_close(void *engine) { delete static_cast<FarEngine *>(engine); }

EK_API void ekt_far_table(void *engine, ek_engine *table) { *table = static_cast<FarEngine *>(engine)->table(); }

EK_API void ekt_far_fail_at(void *engine, const char *function, int64_t nth, int32_t later) {
  static_cast<FarEngine *>(engine)->fail_at(function, nth, later != 0);
}

EK_API void ekt_far_have_room(void *engine, uint64_t bytes, int64_t units) {
  static_cast<FarEngine *>(engine)->have_room(bytes, units);
}

EK_API int64_t ekt_far_count(void *engine, const char *what) { return static_cast<FarEngine *>(engine)->count(what); }

}  // extern "C"
