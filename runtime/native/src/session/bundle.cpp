#include "session/bundle.h"

#include <memory>
#include <utility>

#include "bundle_folder.h"
#include "error.h"

namespace edgekit {
namespace {

constexpr const char *kFormat = "native", *kLayout = "native-1";

bool operator!=(const ProgramShapes &a, const ProgramShapes &b) {
  return a.hidden != b.hidden || a.kv_heads != b.kv_heads || a.head_dim != b.head_dim || a.rotary != b.rotary;
}

}  // namespace

Bundle::Bundle(const std::string &folder, const FlashFile::Wrap &wrap) : path_(folder) {
  BundleFolder files(folder);
  const Json manifest = files.take_root();
  const Json &programs = manifest.at("programs");
  const Json *format = programs.find("format"), *layout = programs.find("layout");
  const auto is = [](const Json *json, const char *wanted) {
    return json != nullptr && json->kind() == Json::Kind::string && json->string() == wanted;
  };
  if (!is(format, kFormat) || !is(layout, kLayout)) {
    fail(EK_UNSUPPORTED_BUNDLE, folder, ": its programs are not ", kFormat, "/", kLayout,
         ", which the native engine runs; export the bundle again for this engine");
  }
  model_ = parse_model(manifest, folder);
  sampler_ = manifest.at("sampler");
  file_ = files.open_weights(FlashOptions{}, wrap);
  if (file_->layout().packed) {
    fail(EK_UNSUPPORTED_BUNDLE, file_->path(), ": is packed, where the native engine needs aligned tensors; ",
         "export the bundle again for this engine");
  }
  const Json &entries = programs.at("entries");
  softcap_ = head_softcap(entries.at("head"));
  if (model_.self_conditioning) self_conditioning_ = single(entries, "self_conditioning");
  add_layers(entries);
  final_ = single(entries, "final");
  embedding_ = tiles(model_.embedding);
  if (!model_.tied) head_ = tiles(model_.head);
}

// Every run has one use: a plan of what stays in memory counts it once.
const Run &Bundle::run(const std::string &name) {
  const FlashLayout &layout = file_->layout();
  const auto found = layout.index.find(name);
  if (found == layout.index.end()) {
    fail(EK_MALFORMED_FILE, file_->path(), ": has no run ", name,
         ", which the manifest names; export the bundle again");
  }
  const Run &run = layout.runs[found->second];
  if (used_[&run]++ != 0) fail(EK_MALFORMED_FILE, path_, ": names run ", name, " twice; export the bundle again");
  return run;
}

Program &Bundle::add_program(const Json &entries, const std::string &name, const ProgramShapes &shapes,
                             std::size_t outputs) {
  const auto found = programs_.find(name);
  if (found != programs_.end()) {
    if (shapes != shapes_.at(name)) {
      fail(EK_MALFORMED_FILE, path_, ": layers of different shape share the program ", name,
           "; export the bundle again");
    }
    return found->second;
  }
  Program program(name, entries.at(name), shapes);
  if (program.outputs() != outputs) {
    fail(EK_MALFORMED_FILE, path_, ": program ", name, " has ", program.outputs(), " outputs, not ", outputs,
         "; export the bundle again");
  }
  shapes_.emplace(name, shapes);
  return programs_.emplace(name, std::move(program)).first->second;
}

BundleUnit Bundle::single(const Json &entries, const std::string &name) {
  ProgramShapes shapes;
  shapes.hidden = model_.hidden;
  Program &program = add_program(entries, name, shapes, 1);
  const Run &own = run(name);
  BundleUnit unit{&own, WeightLayout(own, program.weights())};
  program.expect(unit.layout);
  return unit;
}

void Bundle::add_layers(const Json &entries) {
  for (const LayerInfo &info : model_.layers) {
    ProgramShapes shapes;
    shapes.hidden = model_.hidden;
    shapes.kv_heads = info.kv_heads;
    shapes.head_dim = info.head_dim;
    shapes.rotary = static_cast<std::int64_t>(model_.ropes[info.rope].inverse_frequency.size());
    Program &program = add_program(entries, info.program, shapes, 3);
    if (program.experts() != static_cast<std::int64_t>(info.experts.size())) {
      fail(EK_MALFORMED_FILE, path_, ": program ", info.program, " mixes ", program.experts(), " experts, layer ",
           info.run, " has ", info.experts.size(), "; export the bundle again");
    }
    if (model_.causal_prefix && !program.uses_mask()) {
      fail(EK_MALFORMED_FILE, path_, ": program ", info.program,
           " takes no mask, without which a prefix cannot be encoded; export the bundle again");
    }
    BundleLayer layer;
    layer.info = &info;
    layer.program = &program;
    const Run &dense = run(info.run);
    layer.dense = {&dense, WeightLayout(dense, program.weights())};
    program.expect(layer.dense.layout);
    for (const std::string &name : info.experts) {
      const Run &expert = run(name);
      layer.experts.push_back({&expert, WeightLayout(expert, program.expert_weights())});
      program.expect_expert(layer.experts.back().layout);
    }
    layers_.push_back(std::move(layer));
  }
}

std::vector<BundleTile> Bundle::tiles(const TableInfo &table) {
  std::vector<BundleTile> out;
  for (std::size_t i = 0; i < table.runs.size(); ++i) {
    const Run &own = run(table.runs[i]);
    const std::int64_t first = table.starts[i];
    out.push_back({&own, first, TableLayout(own, table.stop(i) - first, model_.hidden, table.bits)});
  }
  return out;
}

}  // namespace edgekit
