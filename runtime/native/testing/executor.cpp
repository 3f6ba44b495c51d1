// One run of a program on arrays of the caller, for tests/support/native_programs.py.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "error.h"
#include "executor/program.h"
#include "flash_file.h"
#include "session/memory.h"
#include "session/native_engine.h"
#include "session/process.h"
#include "kv_array.h"

namespace edgekit {
namespace {

struct TestTensor {
  const char *name;  // within its run
  const char *dtype;
  std::int64_t rank;
  std::int64_t shape[4];
  const void *data;
  std::int64_t bytes;
};

struct TestCall {
  const char *entry;
  std::int64_t hidden, kv_heads, head_dim, rotary;
  std::int64_t threads, positions, prefix, phase;
  std::int64_t in_place, reversed;  // y is x; experts come in descending order
  std::int64_t batch;               // experts that come at a time; 0: all
  std::int64_t experts, dense_tensors, expert_tensors;  // expert_tensors per expert
  const TestTensor *dense, *expert;
  const float *x, *soft, *prefix_k, *prefix_v, *cos, *sin, *mask;
  float *y, *k, *v;  // k and v may be null
  std::int64_t scratch_bytes;  // out
};

// A run in memory, its tensors at multiples of 64 bytes.
struct TestRun {
  TestRun(const TestTensor *tensors, std::int64_t count) {
    run.name = "run";
    for (std::int64_t i = 0; i < count; ++i) {
      const TestTensor &from = tensors[i];
      Tensor tensor;
      tensor.name = from.name;
      tensor.dtype = from.dtype;
      tensor.shape.assign(from.shape, from.shape + from.rank);
      tensor.offset = run.length;
      tensor.bytes = static_cast<std::uint64_t>(from.bytes);
      run.length += (tensor.bytes + 63) / 64 * 64;
      run.tensors.push_back(tensor);
    }
    memory = AlignedMemory(static_cast<std::size_t>(run.length));
    for (std::int64_t i = 0; i < count; ++i) {
      std::memcpy(memory.data() + run.tensors[static_cast<std::size_t>(i)].offset, tensors[i].data,
                  static_cast<std::size_t>(tensors[i].bytes));
    }
  }

  Run run;
  AlignedMemory memory;
};

void run_call(TestCall &call) {
  std::set<Input> given = {Input::x};
  if (call.soft != nullptr) given.insert(Input::soft);
  if (call.cos != nullptr) {
    given.insert({Input::prefix_k, Input::prefix_v, Input::cos, Input::sin, Input::mask, Input::phase});
  }
  Program program("test", Json::parse(call.entry, "entry"),
                  {call.hidden, call.kv_heads, call.head_dim, call.rotary, given});
  const TestRun dense(call.dense, call.dense_tensors);
  const WeightLayout layout(dense.run, program.weights());
  program.expect(layout);
  std::vector<TestRun> experts;
  std::vector<WeightLayout> expert_layouts;
  for (std::int64_t e = 0; e < call.experts; ++e) {
    experts.emplace_back(call.expert + e * call.expert_tensors, call.expert_tensors);
    expert_layouts.emplace_back(experts.back().run, program.expert_weights());
    program.expect_expert(expert_layouts.back());
  }

  ThreadPool pool(static_cast<int>(call.threads));
  const std::size_t size = program.scratch_bytes(call.positions, pool.size());
  call.scratch_bytes = static_cast<std::int64_t>(size);
  // What is read before it is written shows as NaN, what is written behind the end as a changed guard.
  constexpr std::size_t kGuard = 4096;
  AlignedMemory scratch(size + kGuard);
  std::memset(scratch.data(), 0xff, size + kGuard);

  ProgramInputs inputs;
  inputs.positions = call.positions;
  inputs.x = call.x;
  inputs.soft = call.soft;
  inputs.cos = call.cos;
  inputs.sin = call.sin;
  const std::vector<std::int64_t> phase(static_cast<std::size_t>(call.positions), call.phase);
  inputs.phase = phase.data();
  ProgramSegment segment;
  segment.count = call.positions;
  segment.kept.push_back({kv_array(call.prefix_k, call.kv_heads, call.prefix, call.head_dim),
                          kv_array(call.prefix_v, call.kv_heads, call.prefix, call.head_dim)});
  segment.mask = call.mask;
  if (call.in_place != 0) {
    std::memcpy(call.y, call.x, sizeof(float) * static_cast<std::size_t>(call.positions * call.hidden));
    inputs.x = call.y;
  }
  if (call.k != nullptr) segment.k = kv_array(call.k, call.kv_heads, call.positions, call.head_dim);
  if (call.v != nullptr) segment.v = kv_array(call.v, call.kv_heads, call.positions, call.head_dim);
  inputs.segments.push_back(segment);
  const ForEachExpert each = [&](const auto &, const auto &use) {
    std::vector<LoadedExpert> batch;
    for (std::int64_t i = 0; i < call.experts; ++i) {
      const std::int64_t e = call.reversed != 0 ? call.experts - 1 - i : i;
      const std::size_t place = static_cast<std::size_t>(e);
      batch.push_back({e, BoundWeights(expert_layouts[place], experts[place].memory.data())});
      if (i + 1 < call.experts && (call.batch == 0 || static_cast<std::int64_t>(batch.size()) < call.batch)) continue;
      use(batch);
      batch.clear();
    }
  };
  program.run(pool, inputs, BoundWeights(layout, dense.memory.data()), each, call.y, scratch.data());
  const std::uint8_t *guard = scratch.data() + size;
  if (!std::all_of(guard, guard + kGuard, [](std::uint8_t byte) { return byte == 0xff; })) {
    fail(EK_INTERNAL, "the program wrote behind its scratch memory");
  }
}

}  // namespace
}  // namespace edgekit

namespace {

int32_t told(const char *text, int32_t status, char *message) {
  std::strncpy(message, text, 511);
  message[511] = '\0';
  return status;
}

}  // namespace

// `message` has room for 512 bytes.
extern "C" EK_API int32_t ekt_program(edgekit::TestCall *call, char *message) {
  try {
    edgekit::run_call(*call);
    return EK_OK;
  } catch (const edgekit::Error &error) {
    return told(error.what(), error.status(), message);
  } catch (const std::exception &error) {
    return told(error.what(), EK_INTERNAL, message);
  }
}

extern "C" EK_API int32_t ekt_usable_cores() { return edgekit::usable_cores(); }

extern "C" EK_API int32_t ekt_group_cores(const char *root) { return edgekit::group_cores(root); }

extern "C" EK_API uint64_t ekt_machine_memory(const char *root) { return edgekit::machine_memory(root); }

// Whether a session of a bundle, without a budget, would fit in `machine` bytes. `message` has room for 512 bytes.
extern "C" EK_API int32_t ekt_check_machine(const char *folder, std::int64_t canvas, std::uint64_t machine,
                                            std::uint64_t *least, char *message) {
  try {
    edgekit::Bundle bundle(folder);
    edgekit::SessionOptions options;
    options.canvas = canvas;
    const edgekit::NativeEngine engine(bundle, 2);
    edgekit::MemoryNeeds needs = edgekit::memory_needs(bundle, engine, options);
    needs.process = edgekit::process_resident_bytes();
    edgekit::check_machine(bundle, needs, edgekit::plan_weights(bundle, needs, options), options, machine);
    return EK_OK;
  } catch (const edgekit::BudgetError &error) {
    *least = error.needed();
    return told(error.what(), error.status(), message);
  } catch (const std::exception &error) {
    return told(error.what(), EK_INTERNAL, message);
  }
}
