#include "session/core_programs.h"

#include <algorithm>
#include <utility>

#include "error.h"

namespace edgekit {
namespace {

bool operator!=(const ProgramShapes &a, const ProgramShapes &b) {
  return a.hidden != b.hidden || a.kv_heads != b.kv_heads || a.head_dim != b.head_dim || a.rotary != b.rotary ||
         a.given != b.given;
}

}  // namespace

Program &CorePrograms::add(const Json &entries, const std::string &name, const ProgramShapes &shapes, std::size_t outputs) {
  const auto found = programs_.find(name);
  if (found != programs_.end()) {
    if (shapes != shapes_.at(name)) {
      fail(EK_MALFORMED_FILE, bundle_.path(), ": layers of different shape share the program ", name,
           "; export the bundle again");
    }
    return found->second;
  }
  Program program = about_path(bundle_.path(), [&] { return Program(name, entries.at(name), shapes); });
  if (program.outputs() != outputs) {
    fail(EK_MALFORMED_FILE, bundle_.path(), ": program ", name, " has ", program.outputs(), " outputs, not ", outputs,
         "; export the bundle again");
  }
  shapes_.emplace(name, shapes);
  return programs_.emplace(name, std::move(program)).first->second;
}

void CorePrograms::expect(const std::string &name, const WeightUnit &unit) {
  Program &program = programs_.at(name);
  about_path(bundle_.path(), [&] {
    program.expect(layouts_.emplace(&unit, WeightLayout(*unit.run, program.weights())).first->second);
  });
}

void CorePrograms::expect_experts(const std::string &name, const BundleChunk &chunk) {
  Program &program = programs_.at(name);
  if (program.experts() != static_cast<std::int64_t>(chunk.experts.size())) {
    fail(EK_MALFORMED_FILE, bundle_.path(), ": program ", name, " mixes ", program.experts(), " experts, layer ",
         chunk.first, " has ", chunk.experts.size(), "; export the bundle again");
  }
  about_path(bundle_.path(), [&] {
    for (const WeightUnit *expert : chunk.experts) {
      WeightLayout layout(*expert->run, program.expert_weights());
      program.expect_expert(layouts_.emplace(expert, std::move(layout)).first->second);
    }
  });
}

std::uint64_t CorePrograms::scratch_bytes(std::int64_t positions, int threads) const {
  std::uint64_t most = 0;
  for (const auto &[name, program] : programs_) {
    most = std::max<std::uint64_t>(most, program.scratch_bytes(positions, threads));
  }
  return most;
}

void CorePrograms::run(ThreadPool &pool, const Program &program, const ProgramInputs &given, const LoadedUnit &weights,
                       const ForEachExpert &experts, float *y) {
  const std::size_t wanted = program.scratch_bytes(given.positions, pool.size());
  if (wanted > scratch_.size()) {
    scratch_ = AlignedMemory();  // not both at a time
    scratch_ = AlignedMemory(wanted);
  }
  program.run(pool, given, bind(weights), experts, y, scratch_.data());
}

void CorePrograms::run(ThreadPool &pool, const Program &program, const ProgramInputs &given, const LoadedUnit &weights,
                       float *y) {
  run(pool, program, given, weights, {}, y);
}

void CorePrograms::run_layer(ThreadPool &pool, const Program &program, const LayersCall &call, const LoadedUnit &weights,
                             std::vector<const float *> dense) {
  ProgramInputs given;
  given.positions = call.rows;
  given.x = call.x;
  given.dense = std::move(dense);
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
  run(pool, program, given, weights, each, call.x);
}

}  // namespace edgekit
