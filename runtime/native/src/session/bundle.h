// An opened bundle: its model, and the units in which its weights are loaded. Programs are the engine's.
#ifndef EDGEKIT_SESSION_BUNDLE_H
#define EDGEKIT_SESSION_BUNDLE_H

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "flash_file.h"
#include "json.h"
#include "session/model.h"

namespace edgekit {

// What is loaded at a time: a run of the flash file, or a package that the engine opens.
struct WeightUnit {
  std::string name;
  const Run *run = nullptr;  // null: a package
  std::uint64_t bytes = 0;
};

// Consecutive layers that share a unit.
struct BundleChunk {
  std::size_t first = 0, count = 1;  // layers of the model
  const WeightUnit *unit = nullptr;
  const WeightUnit *mixture = nullptr;      // of its only layer, where it has experts beside a package
  std::vector<const WeightUnit *> experts;  // of its only layer

  // What a pass uses before the experts, in order.
  std::vector<const WeightUnit *> dense() const {
    return mixture == nullptr ? std::vector<const WeightUnit *>{unit} : std::vector<const WeightUnit *>{unit, mixture};
  }
};

struct BundleTile {
  const WeightUnit *unit = nullptr;
  std::int64_t first = 0, tokens = 0;
};

// What the manifest tells people of its model; empty or 0 where it does not.
struct BundleOrigin {
  std::string checkpoint, target, family, preset;
  std::int64_t parameters = 0, group_size = 0;
};

class Bundle {
 public:
  // Reads headers alone. Throws Error: those of BundleFolder, EK_MALFORMED_FILE where manifest and flash file do not fit.
  explicit Bundle(const std::string &folder, const FlashFile::Wrap &wrap = nullptr);
  Bundle(const Bundle &) = delete;
  Bundle &operator=(const Bundle &) = delete;

  const std::string &path() const noexcept { return path_; }
  const std::string &digest() const noexcept { return digest_; }  // of the manifest, as it says itself
  const BundleOrigin &origin() const noexcept { return origin_; }
  const Model &model() const noexcept { return model_; }
  const Json &sampler() const noexcept { return sampler_; }
  FlashFile &file() const noexcept { return *file_; }
  bool packaged() const noexcept { return packaged_; }
  // Of the programs, as the manifest names it; empty where it does not.
  const std::string &format() const noexcept { return format_; }
  // Positions of prefix that the packages of layers take at most; no limit where there are none.
  std::int64_t longest_prefix() const noexcept { return longest_prefix_; }
  const std::vector<BundleChunk> &chunks() const noexcept { return chunks_; }
  const std::vector<BundleTile> &embedding() const noexcept { return embedding_; }
  // The tiles of the vocabulary head; the embedding's own where that is the head.
  const std::vector<BundleTile> &scores() const noexcept { return head_.empty() ? embedding_ : head_; }
  std::int64_t largest_tile() const;  // of the head, in tokens
  // All that a step uses, in order.
  std::vector<const WeightUnit *> step_units() const;
  bool has_head() const noexcept { return !head_.empty(); }
  const WeightUnit &final() const noexcept { return *final_; }
  const WeightUnit *self_conditioning() const noexcept { return self_conditioning_; }  // null: the model has none

  // The manifest's section "programs", which is large: for whoever makes the engine, once.
  Json take_programs() { return std::move(programs_); }

 private:
  const WeightUnit *run(const std::string &name);
  const WeightUnit *package(const std::string &name);
  const WeightUnit *unit(const std::string &name) { return packaged_ ? package(name) : run(name); }
  void add_chunks();
  void add_package_tiles();
  void find_longest_prefix();
  std::vector<BundleTile> tiles(const TableInfo &table);

  std::string path_, format_, digest_;
  BundleOrigin origin_;
  Model model_;
  Json sampler_, programs_;
  std::unique_ptr<FlashFile> file_;
  bool packaged_ = false;
  std::int64_t longest_prefix_ = std::numeric_limits<std::int64_t>::max();
  std::deque<WeightUnit> units_;  // their addresses stay
  std::unordered_map<std::string, int> used_;
  std::vector<BundleChunk> chunks_;
  std::vector<BundleTile> embedding_, head_;
  const WeightUnit *final_ = nullptr, *self_conditioning_ = nullptr;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_BUNDLE_H
