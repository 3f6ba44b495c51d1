#include "session/bundle.h"

#include <algorithm>
#include <utility>

#include "bundle_folder.h"
#include "error.h"

namespace edgekit {

namespace {

// Nothing is decided by it, so what is of another kind is left out.
BundleOrigin origin_of(const Json &manifest) {
  const auto told = [&](const char *section, const char *name, Json::Kind kind) -> const Json * {
    const Json *found = manifest.find(section);
    if (found != nullptr) found = found->kind() == Json::Kind::object ? found->find(name) : nullptr;
    return found != nullptr && found->kind() == kind ? found : nullptr;
  };
  const auto text = [&](const char *section, const char *name) {
    const Json *found = told(section, name, Json::Kind::string);
    return found != nullptr ? found->string() : std::string();
  };
  const auto number = [&](const char *section, const char *name) {
    const Json *found = told(section, name, Json::Kind::integer);
    return found != nullptr ? found->integer() : 0;
  };
  return {text("provenance", "checkpoint"),       text("provenance", "target"),
          text("model", "family"),                text("quantization", "preset"),
          number("quantization", "parameters"),   number("quantization", "group_size")};
}

}  // namespace

Bundle::Bundle(const std::string &folder, const FlashFile::Wrap &wrap) : path_(folder) {
  BundleFolder files(folder);
  digest_ = files.text().substr(kSealStart.size(), kSealDigits);
  const Json manifest = files.take_root();
  programs_ = manifest.at("programs");
  packaged_ = programs_.find("packages") != nullptr;
  model_ = parse_model(manifest, folder, packaged_);
  origin_ = origin_of(manifest);
  sampler_ = manifest.at("sampler");
  file_ = files.open_weights(FlashOptions{}, wrap);
  const Json *format = programs_.find("format");
  if (format != nullptr && format->kind() == Json::Kind::string) format_ = format->string();
  if ((format_ == "native" || format_ == "tvm") && file_->layout().packed) {
    fail(EK_UNSUPPORTED_BUNDLE, file_->path(), ": is packed, where the ", format_, " engine needs aligned tensors; ",
         "export the bundle again for this engine");
  }
  if (model_.self_conditioning) self_conditioning_ = unit("self_conditioning");
  add_chunks();
  final_ = unit("final");
  embedding_ = tiles(model_.embedding);
  if (packaged_) {
    add_package_tiles();
    find_longest_prefix();
  }
  if (head_.empty() && !model_.tied) head_ = tiles(model_.head);
}

// Every unit has one use: a plan of what stays in memory counts it once.
const WeightUnit *Bundle::run(const std::string &name) {
  const FlashLayout &layout = file_->layout();
  const auto found = layout.index.find(name);
  if (found == layout.index.end()) {
    fail(EK_MALFORMED_FILE, file_->path(), ": has no run ", name,
         ", which the manifest names; export the bundle again");
  }
  const Run &own = layout.runs[found->second];
  if (used_[name]++ != 0) fail(EK_MALFORMED_FILE, path_, ": names run ", name, " twice; export the bundle again");
  units_.push_back({name, &own, own.length});
  return &units_.back();
}

const WeightUnit *Bundle::package(const std::string &name) {
  const Json *entry = programs_.at("packages").find(name);
  if (entry == nullptr) {
    fail(EK_MALFORMED_FILE, path_, ": has no package ", name, ", which the model needs; export the bundle again");
  }
  const std::int64_t bytes = entry->at("bytes").integer();
  if (bytes < 1) fail(EK_MALFORMED_FILE, path_, ": package ", name, " has ", bytes, " bytes; export the bundle again");
  if (used_[name]++ != 0) fail(EK_MALFORMED_FILE, path_, ": names package ", name, " twice; export the bundle again");
  units_.push_back({name, nullptr, static_cast<std::uint64_t>(bytes)});
  return &units_.back();
}

void Bundle::add_chunks() {
  for (std::size_t i = 0; i < model_.layers.size(); ++i) {
    const LayerInfo &info = model_.layers[i];
    if (info.slot != 0) {
      ++chunks_.back().count;
      continue;
    }
    BundleChunk chunk;
    chunk.first = i;
    chunk.unit = unit(info.run);
    if (!info.mixture_run.empty()) chunk.mixture = run(info.mixture_run);
    for (const std::string &name : info.experts) chunk.experts.push_back(run(name));
    chunks_.push_back(std::move(chunk));
  }
}

void Bundle::add_package_tiles() {
  for (const auto &[name, entry] : programs_.at("packages").object()) {
    const Json *first = entry.find("start");
    if (first == nullptr) continue;  // the head's alone have one
    const std::int64_t tokens = entry.at("rows").integer();
    if (first->integer() < 0 || tokens < 1 || tokens > model_.vocabulary) {
      fail(EK_MALFORMED_FILE, path_, ": package ", name, " holds ", tokens, " tokens from ", first->integer(),
           " on; export the bundle again");
    }
    head_.push_back({package(name), first->integer(), tokens});
  }
  // A head that the core computes lies in the flash file.
  if (head_.empty() && (model_.tied || !model_.head.runs.empty())) return;
  std::sort(head_.begin(), head_.end(), [](const BundleTile &a, const BundleTile &b) { return a.first < b.first; });
  std::int64_t covered = 0;
  for (const BundleTile &tile : head_) {
    if (tile.first != covered) {
      fail(EK_MALFORMED_FILE, path_, ": package ", tile.unit->name, " starts at token ", tile.first, ", expected ",
           covered, "; export the bundle again");
    }
    covered += tile.tokens;
  }
  if (covered != model_.vocabulary) {
    fail(EK_MALFORMED_FILE, path_, ": the packages of the head hold ", covered, " of ", model_.vocabulary,
         " tokens; export the bundle again");
  }
}

std::int64_t Bundle::largest_tile() const {
  std::int64_t most = 0;
  for (const BundleTile &tile : scores()) most = std::max(most, tile.tokens);
  return most;
}

std::vector<const WeightUnit *> Bundle::step_units() const {
  std::vector<const WeightUnit *> units;
  if (self_conditioning() != nullptr) units.push_back(self_conditioning());
  for (const BundleChunk &chunk : chunks_) {
    for (const WeightUnit *unit : chunk.dense()) units.push_back(unit);
    units.insert(units.end(), chunk.experts.begin(), chunk.experts.end());
  }
  units.push_back(&final());
  for (const BundleTile &tile : scores()) units.push_back(tile.unit);
  return units;
}

void Bundle::find_longest_prefix() {
  for (const BundleChunk &chunk : chunks_) {
    std::int64_t longest = 0;
    const Json &functions = programs_.at("packages").at(chunk.unit->name).at("functions");
    for (const auto &[name, function] : functions.object()) {
      const Json *positions = function.find("p");
      if (positions != nullptr && !positions->is_null()) longest = std::max(longest, positions->integer());
    }
    longest_prefix_ = std::min(longest_prefix_, longest);
  }
}

std::vector<BundleTile> Bundle::tiles(const TableInfo &table) {
  std::vector<BundleTile> out;
  for (std::size_t i = 0; i < table.runs.size(); ++i) {
    const std::int64_t first = table.starts[i];
    out.push_back({run(table.runs[i]), first, table.stop(i) - first});
  }
  return out;
}

}  // namespace edgekit
