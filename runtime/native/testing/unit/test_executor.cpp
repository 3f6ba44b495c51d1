// Programs, scratch memory and prefix buffers, for sanitizers: lists that are wrong in every place, one layer with
// everything in it, memory that moves.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "error.h"
#include "executor/program.h"
#include "executor/scratch_plan.h"
#include "flash_file.h"
#include "json.h"
#include "session/process.h"
#include "unit.h"

namespace edgekit {
namespace {

// A layer of nearly all ops, with hidden 16, two heads of 8, one KV head and three experts; two products have adapters.
constexpr const char *kLayer = R"({
"inputs": ["x", "prefix_k", "prefix_v", "cos", "sin", "mask", "phase"], "outputs": [32, 13, 11],
"weights": {"n": [16], "q": [16, 16], "k": [8, 16], "o": [16, 16], "g": [24, 16], "u": [24, 16], "d": [16, 24],
            "b": [16], "kd": [5, 16], "ku": [8, 5], "od": [3, 16], "ou": [16, 3], "router": [3, 16],
            "each": [3], "scalars": [2],
            "experts.gate_up": [40, 16], "experts.down": [16, 20]},
"values": 33,
"ops": [
{"op": "rms_norm", "in": [0], "w": ["n"], "out": [7], "eps": 1e-6},
{"op": "linear", "in": [7, null], "w": ["q", "b"], "out": [8], "act_bits": 8},
{"op": "linear", "in": [7, null], "w": ["k", null, "kd", "ku"], "out": [9], "act_bits": 8},
{"op": "view", "in": [9], "w": [], "out": [10], "shape": [1, "t", 1, 8]},
{"op": "transpose", "in": [10], "w": [], "out": [11], "axes": [1, 2]},
{"op": "rms_norm", "in": [11], "w": [null], "out": [12], "eps": 1e-6},
{"op": "rope", "in": [12, 3, 4], "w": [], "out": [13]},
{"op": "view", "in": [8], "w": [], "out": [14], "shape": [1, "t", 2, 8]},
{"op": "transpose", "in": [14], "w": [], "out": [15], "axes": [1, 2]},
{"op": "rope", "in": [15, 3, 4], "w": [], "out": [16]},
{"op": "attention", "in": [16, 13, 11, 1, 2, 5], "w": [], "out": [17], "scale": 0.5},
{"op": "transpose", "in": [17], "w": [], "out": [18], "axes": [1, 2]},
{"op": "view", "in": [18], "w": [], "out": [19], "shape": [1, "t", 16]},
{"op": "linear", "in": [19, 0], "w": ["o", null, "od", "ou"], "out": [20], "act_bits": 8},
{"op": "linear_gated", "in": [20], "w": ["g", "u"], "out": [21], "kind": "gelu_tanh"},
{"op": "linear", "in": [21, null], "w": ["d", null], "out": [22], "act_bits": 8},
{"op": "view", "in": [20], "w": [], "out": [23], "shape": ["t", 16]},
{"op": "linear", "in": [23, null], "w": ["router", null], "out": [24], "act_bits": 16},
{"op": "route", "in": [24], "w": [null, "each"], "out": [25, 26], "k": 2, "score": "softmax", "normalize": true,
 "scale": 1.0, "groups": 1, "kept_groups": 1, "capacity": 0, "block": 0},
{"op": "experts", "in": [23, 25, 26], "w": ["experts.gate_up", "experts.down"], "out": [27], "kind": "silu",
 "experts": 3},
{"op": "view", "in": [27], "w": [], "out": [28], "shape": [1, "t", 16]},
{"op": "add", "in": [22, 28], "w": [], "out": [29]},
{"op": "select", "in": [6], "w": ["scalars"], "out": [30]},
{"op": "mul", "in": [29, 30], "w": [], "out": [31]},
{"op": "scale", "in": [31], "w": [], "out": [32], "by": 1.5}
]})";

const ProgramShapes kShapes{16, 1, 8, 4,
                            {Input::x, Input::prefix_k, Input::prefix_v, Input::cos, Input::sin, Input::query_scale,
                             Input::mask, Input::phase}};

// Weights in memory, as a run holds them: bfloat16 or 8 bits.
struct Weights {
  Weights(const std::vector<WeightShape> &shapes, int bits, unsigned seed) {
    std::mt19937 random(seed);
    run.name = "run";
    for (const WeightShape &shape : shapes) {
      const std::int64_t panels = (shape.rows + 63) / 64, quads = (shape.columns + 3) / 4;
      if (!shape.is_matrix) {
        add(shape.name, "F32", {shape.count}, 4 * shape.count);
      } else if (bits == 16) {
        add(shape.name + ".weight", "BF16", {shape.rows, shape.columns}, 2 * shape.rows * shape.columns);
      } else {
        add(shape.name + ".codes", "U8", {panels, quads, 64, 4}, panels * quads * 256);
        add(shape.name + ".scales", "F32", {panels * 64}, panels * 256);
      }
    }
    memory = AlignedMemory(static_cast<std::size_t>(run.length));
    for (const Tensor &tensor : run.tensors) {
      std::uint8_t *data = memory.data() + tensor.offset;
      for (std::uint64_t i = 0; i < tensor.bytes; ++i) {
        if (tensor.dtype == "U8") data[i] = static_cast<std::uint8_t>(random());
      }
      for (std::uint64_t i = 0; tensor.dtype == "F32" && i < tensor.bytes / 4; ++i) {
        const float value = 0.01f + 0.001f * static_cast<float>(random() % 16);
        std::memcpy(data + 4 * i, &value, 4);
      }
      for (std::uint64_t i = 0; tensor.dtype == "BF16" && i < tensor.bytes / 2; ++i) {
        const std::uint16_t value = static_cast<std::uint16_t>(0x3d00 | (random() & 0x807f));  // +-0.03..0.06
        std::memcpy(data + 2 * i, &value, 2);
      }
    }
  }

  void add(const std::string &name, const char *dtype, std::vector<std::int64_t> shape, std::int64_t bytes) {
    Tensor tensor;
    tensor.name = name;
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    tensor.offset = run.length;
    tensor.bytes = static_cast<std::uint64_t>(bytes);
    run.length += (tensor.bytes + 63) / 64 * 64;
    run.tensors.push_back(tensor);
  }

  Run run;
  AlignedMemory memory;
};

Strided kv(float *data, std::int64_t length) {
  Strided out;
  out.data = data;
  const std::int64_t shape[] = {1, 1, length, 8}, stride[] = {8 * length, 8 * length, 8, 1};
  std::copy(shape, shape + 4, out.shape);
  std::copy(stride, stride + 4, out.stride);
  return out;
}

struct Outputs {
  std::vector<float> y, k, v;
};

// Every array of its exact size and on the heap, so that a step beyond any end is seen.
Outputs run_layer(const Program &program, const Weights &dense, const std::vector<Weights> &experts, int threads,
                  std::int64_t positions, std::int64_t prefix, bool keep) {
  const auto floats = [](std::int64_t count, float first) {
    std::vector<float> out(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = first + 0.1f * static_cast<float>(i % 13);
    return out;
  };
  ThreadPool pool(threads);
  Outputs out;
  out.y = floats(16 * positions, -0.5f);
  std::vector<float> prefix_k = floats(8 * prefix, 0.1f), prefix_v = floats(8 * prefix, -0.2f);
  const std::vector<float> cos = floats(4 * positions, 0.3f), sin = floats(4 * positions, 0.1f);
  const std::vector<float> mask = floats(positions * (positions + prefix), 0.0f);
  const std::vector<std::int64_t> phase(static_cast<std::size_t>(positions), 1);
  ProgramInputs inputs;
  inputs.positions = positions;
  inputs.x = out.y.data();
  inputs.cos = cos.data();
  inputs.sin = sin.data();
  inputs.phase = phase.data();
  ProgramSegment segment;
  segment.count = positions;
  segment.kept.push_back({kv(prefix_k.data(), prefix), kv(prefix_v.data(), prefix)});
  segment.mask = mask.data();
  if (keep) {
    out.k.resize(static_cast<std::size_t>(8 * positions));
    out.v.resize(static_cast<std::size_t>(8 * positions));
    segment.k = kv(out.k.data(), positions);
    segment.v = kv(out.v.data(), positions);
  }
  inputs.segments.push_back(segment);
  const WeightLayout expert_layout(experts[0].run, program.expert_weights());
  const ForEachExpert each = [&](const auto &, const auto &use) {
    std::vector<LoadedExpert> batch;
    for (std::size_t i = experts.size(); i-- > 0;) {
      batch.push_back({static_cast<std::int64_t>(i), BoundWeights(expert_layout, experts[i].memory.data())});
    }
    use(batch);
  };
  const std::size_t size = program.scratch_bytes(positions, threads);
  void *scratch = ::operator new(size, std::align_val_t(64));
  try {
    const WeightLayout layout(dense.run, program.weights());
    program.run(pool, inputs, BoundWeights(layout, dense.memory.data()), each, out.y.data(), scratch);
  } catch (...) {
    ::operator delete(scratch, std::align_val_t(64));
    throw;
  }
  ::operator delete(scratch, std::align_val_t(64));
  return out;
}

EK_TEST(executor_layer_is_the_same_for_any_number_of_threads) {
  for (const int bits : {8, 16}) {
    Program program("layer", Json::parse(kLayer, "entry"), kShapes);
    const Weights dense(program.weights(), bits, 1);
    program.expect(WeightLayout(dense.run, program.weights()));
    std::vector<Weights> experts;
    for (unsigned e = 0; e < 3; ++e) {
      experts.emplace_back(program.expert_weights(), bits, 2 + e);
      program.expect_expert(WeightLayout(experts.back().run, program.expert_weights()));
    }
    for (const std::int64_t positions : {1, 5, 67}) {
      for (const std::int64_t prefix : {0, 3}) {
        const Outputs one = run_layer(program, dense, experts, 1, positions, prefix, true);
        for (const float value : one.y) EK_CHECK(value == value);
        const Outputs three = run_layer(program, dense, experts, 3, positions, prefix, true);
        EK_CHECK(one.y == three.y && one.k == three.k && one.v == three.v);
        EK_CHECK(run_layer(program, dense, experts, 2, positions, prefix, false).y == one.y);
      }
    }
  }
}

EK_TEST(executor_refuses_a_form_that_was_not_told) {
  Program program("layer", Json::parse(kLayer, "entry"), kShapes);
  const Weights dense(program.weights(), 16, 1);
  program.expect(WeightLayout(dense.run, program.weights()));
  const Weights other(program.weights(), 8, 1);
  std::vector<Weights> experts;
  experts.emplace_back(program.expert_weights(), 16, 2);
  bool refused = false;
  try {
    run_layer(program, other, experts, 1, 2, 0, false);
  } catch (const Error &error) {
    refused = error.status() == EK_INTERNAL;
  }
  EK_CHECK(refused);
}

// True when the text was refused with an Error of the two kinds that a bad program may give.
bool refused(const std::string &text) {
  try {
    const Program program("layer", Json::parse(text, "entry"), kShapes);
    program.scratch_bytes(7, 2);
    return false;
  } catch (const Error &error) {
    EK_CHECK(error.status() == EK_MALFORMED_FILE || error.status() == EK_UNSUPPORTED_BUNDLE);
    EK_CHECK(std::strlen(error.what()) > 0);
    return true;
  }
}

EK_TEST(executor_refuses_inputs_that_calls_do_not_give) {
  for (const Input input : {Input::x, Input::prefix_k, Input::prefix_v, Input::cos, Input::sin, Input::mask, Input::phase}) {
    ProgramShapes shapes = kShapes;
    shapes.given.erase(input);
    bool refused = false;
    try {
      const Program program("layer", Json::parse(kLayer, "entry"), shapes);
    } catch (const Error &error) {
      refused = error.status() == EK_MALFORMED_FILE && std::strstr(error.what(), "which it is not given") != nullptr;
    }
    EK_CHECK(refused);
  }
}

EK_TEST(executor_survives_wrong_programs) {
  const std::string text = kLayer;
  EK_CHECK(!refused(text));
  // Every number and every string becomes something else.
  const char *const replacements[] = {"-1", "0", "1", "2", "37", "38", "99999999999", "1e300", "null",
                                      "\"x\"", "[]", "{}", "true", "[1, 2]", "\"q\"", "\"t\""};
  int tried = 0, wrong = 0;
  for (std::size_t i = 0; i < text.size();) {
    const bool digit = (text[i] >= '0' && text[i] <= '9') || text[i] == '-', quote = text[i] == '"';
    std::size_t end = i + 1;
    if (digit) {
      end = text.find_first_of(",]} \n", i);
    } else if (quote) {
      end = text.find('"', i + 1) + 1;
    }
    if (digit || quote) {
      for (const char *replacement : replacements) {
        ++tried;
        wrong += refused(text.substr(0, i) + replacement + text.substr(end)) ? 1 : 0;
      }
    }
    i = end;
  }
  EK_CHECK(tried > 3000 && wrong > tried / 2);
  // Every op is left out, or comes twice.
  std::size_t start = text.find("\"ops\"");
  for (std::size_t i = text.find("\n{", start); i != std::string::npos; i = text.find("\n{", i + 1)) {
    const std::size_t end = text.find('}', i) + 1;
    const std::string op = text.substr(i, end - i);
    refused(text.substr(0, i) + text.substr(std::min(end + 1, text.size())));
    EK_CHECK(refused(text.substr(0, end) + "," + op + text.substr(end)));
  }
}

EK_TEST(scratch_plan_keeps_living_buffers_apart) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const std::size_t count = 1 + random() % 20;
    std::vector<Lifetime> lifetimes(count);
    std::vector<std::size_t> example(count), sizes(count), larger(count), offsets;
    for (std::size_t i = 0; i < count; ++i) {
      lifetimes[i].first = static_cast<int>(random() % 20);
      lifetimes[i].last = lifetimes[i].first + static_cast<int>(random() % 6);
      example[i] = random() % 5 == 0 ? 0 : random() % 10000;
      sizes[i] = random() % 10000;
      larger[i] = sizes[i] + random() % 1000;
    }
    const ScratchPlan plan(lifetimes, example);
    const std::size_t total = plan.place(sizes, offsets);
    for (std::size_t i = 0; i < count; ++i) {
      EK_CHECK(offsets[i] % 64 == 0 && offsets[i] + sizes[i] <= total);
      for (std::size_t j = 0; j < i; ++j) {
        const bool together = lifetimes[i].first <= lifetimes[j].last && lifetimes[j].first <= lifetimes[i].last;
        const bool apart = offsets[i] + sizes[i] <= offsets[j] || offsets[j] + sizes[j] <= offsets[i];
        EK_CHECK(!together || apart || sizes[i] == 0 || sizes[j] == 0);
      }
    }
    EK_CHECK(plan.place(larger, offsets) >= total);
  }
}

EK_TEST(process_tells_of_cores_and_memory) {
  EK_CHECK(usable_cores() >= 1);
#if defined(__linux__)
  EK_CHECK(process_resident_bytes() > 100000);
#endif
}

}  // namespace
}  // namespace edgekit
