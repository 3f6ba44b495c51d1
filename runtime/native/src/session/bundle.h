// An opened bundle: its flash file, its programs, and where its runs hold what the programs name.
#ifndef EDGEKIT_SESSION_BUNDLE_H
#define EDGEKIT_SESSION_BUNDLE_H

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "executor/program.h"
#include "executor/weights.h"
#include "flash_file.h"
#include "json.h"
#include "session/model.h"

namespace edgekit {

// A run and how a program reads it.
struct BundleUnit {
  const Run *run = nullptr;
  WeightLayout layout;
};

struct BundleLayer {
  const LayerInfo *info = nullptr;
  const Program *program = nullptr;
  BundleUnit dense;
  std::vector<BundleUnit> experts;
};

struct BundleTile {
  const Run *run = nullptr;
  std::int64_t first = 0;  // token
  TableLayout table;
};

class Bundle {
 public:
  // Reads headers alone. Throws Error: those of BundleFolder, EK_MALFORMED_FILE where manifest and flash file do not fit,
  // EK_UNSUPPORTED_BUNDLE for another format.
  explicit Bundle(const std::string &folder, const FlashFile::Wrap &wrap = nullptr);
  Bundle(const Bundle &) = delete;
  Bundle &operator=(const Bundle &) = delete;

  const std::string &path() const noexcept { return path_; }
  const Model &model() const noexcept { return model_; }
  const Json &sampler() const noexcept { return sampler_; }
  FlashFile &file() const noexcept { return *file_; }
  const std::vector<BundleLayer> &layers() const noexcept { return layers_; }
  const std::vector<BundleTile> &embedding() const noexcept { return embedding_; }
  const std::vector<BundleTile> &scores() const noexcept { return model_.tied ? embedding_ : head_; }
  const Program &program(const std::string &name) const { return programs_.at(name); }
  const std::map<std::string, Program> &programs() const noexcept { return programs_; }
  const BundleUnit &final() const noexcept { return final_; }
  const BundleUnit &self_conditioning() const noexcept { return self_conditioning_; }
  float softcap() const noexcept { return softcap_; }

 private:
  const Run &run(const std::string &name);
  Program &add_program(const Json &entries, const std::string &name, const ProgramShapes &shapes, std::size_t outputs);
  BundleUnit single(const Json &entries, const std::string &name);
  void add_layers(const Json &entries);
  std::vector<BundleTile> tiles(const TableInfo &table);

  std::string path_;
  Model model_;
  Json sampler_;  // the manifest's section, which only a whole generation reads
  std::unique_ptr<FlashFile> file_;
  std::map<std::string, Program> programs_;
  std::map<std::string, ProgramShapes> shapes_;
  std::map<const Run *, int> used_;
  std::vector<BundleLayer> layers_;
  std::vector<BundleTile> embedding_, head_;
  BundleUnit final_, self_conditioning_;
  float softcap_ = 0;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_BUNDLE_H
