// One layer of a bundle by the core's own engine for it, on arrays of the caller: tests/support/core_layer.py.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "error.h"
#include "flash_file.h"
#include "session/engine.h"
#include "session/session.h"
#include "kv_array.h"

namespace edgekit {
namespace {

struct LayerCall {
  std::int64_t layer, rows, prefix, causal, threads;
  const float *x, *prefix_k, *prefix_v, *cos, *sin, *query_scale, *adapter, *mask;  // these three may be null
  float *y, *k, *v;
};

void run_layer(const std::string &folder, const LayerCall &given) {
  Bundle bundle(folder);
  SessionOptions options;
  options.threads = static_cast<int>(given.threads);
  const std::unique_ptr<Engine> engine = core_engine(options)(bundle);
  const EngineLengths lengths{given.rows, given.prefix, 1, 1};
  engine->open(lengths);
  std::unordered_map<const WeightUnit *, AlignedMemory> memory;
  const auto loaded = [&](const WeightUnit *unit) {
    AlignedMemory &own = memory[unit];
    if (own.size() == 0) {
      own = AlignedMemory(static_cast<std::size_t>(unit->bytes));
      bundle.file().read(*unit->run, own.data());
    }
    return LoadedUnit{unit, own.data()};
  };
  const BundleChunk &chunk = bundle.chunks()[static_cast<std::size_t>(given.layer)];
  const LayerInfo &info = bundle.model().layers[chunk.first];
  std::memcpy(given.y, given.x, sizeof(float) * static_cast<std::size_t>(given.rows * bundle.model().hidden));
  LayerInputs inputs;
  inputs.layer = chunk.first;
  inputs.kept.push_back({kv_array(given.prefix_k, info.kv_heads, given.prefix, info.head_dim),
                         kv_array(given.prefix_v, info.kv_heads, given.prefix, info.head_dim)});
  inputs.kept_rows = given.prefix;
  inputs.cos = given.cos;
  inputs.sin = given.sin;
  inputs.query_scale = given.query_scale;
  inputs.adapter = given.adapter;
  inputs.mask = given.mask;
  inputs.k = kv_array(given.k, info.kv_heads, given.rows, info.head_dim);
  inputs.v = kv_array(given.v, info.kv_heads, given.rows, info.head_dim);
  LayersCall call;
  call.chunk = &chunk;
  call.weights = loaded(chunk.unit);
  call.rows = given.rows;
  call.x = given.y;
  call.segments.push_back({0, given.rows, given.causal != 0, {inputs}});
  call.experts = [&](const std::vector<std::int64_t> &rows, const auto &use) {
    std::vector<LoadedExpertUnit> batch;
    for (std::size_t e = chunk.experts.size(); e-- > 0;) {
      if (rows[e] > 0) batch.push_back({e, loaded(chunk.experts[e])});
    }
    use(batch);
  };
  engine->layers(call);
}

}  // namespace
}  // namespace edgekit

extern "C" EK_API ek_status ekt_engine_layer(const char *bundle, const edgekit::LayerCall *call, char *message,
                                             std::size_t room) {
  try {
    edgekit::run_layer(bundle, *call);
    return EK_OK;
  } catch (const edgekit::Error &error) {
    std::strncpy(message, error.what(), room - 1);
    return error.status();
  }
}
