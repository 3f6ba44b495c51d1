// An engine over packages: chooses functions by length, pads what goes in, cuts what comes out.
//
// Functions have fixed sizes. Rows and prefix are padded to the smallest function that they fit; the mask hides the padding,
// and what comes out for padded rows is dropped.
#ifndef EDGEKIT_PACKAGES_PACKAGE_ENGINE_H
#define EDGEKIT_PACKAGES_PACKAGE_ENGINE_H

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bundle_folder.h"
#include "packages/package_executor.h"
#include "packages/package_opener.h"
#include "session/core_head.h"
#include "session/core_programs.h"
#include "session/engine.h"
#include "thread_pool.h"

namespace edgekit {

class PackageEngine final : public Engine {
 public:
  using MakeExecutor = std::function<std::unique_ptr<PackageExecutor>(const PackagePrograms &)>;

  // `programs` is the manifest's section. The executor is made when the engine opens: not for planning alone. `threads` are
  // for a head and for experts that lie in the flash file, which are computed here. Throws Error: see PackagePrograms,
  // CoreHead, CorePrograms.
  PackageEngine(const Bundle &bundle, const Json &programs, int threads, MakeExecutor make);
  ~PackageEngine() override;

  EngineBytes bytes(const EngineLengths &lengths) const override;
  std::uint64_t experts_wanted(const BundleChunk &chunk, const EngineLengths &lengths) const override;
  void open(const EngineLengths &lengths) override;
  void check_rows(std::int64_t rows, std::int64_t kept) const override;
  void layers(const LayersCall &call) override;
  void self_condition(const LoadedUnit &weights, std::int64_t rows, float *x, const float *soft) override;
  void final(const LoadedUnit &weights, std::int64_t rows, float *x) override;
  std::unique_ptr<HeadScores> head(const float *x, std::int64_t rows, const HeadRequest &request,
                                   float *logits) override;
  void open_begin(const WeightUnit &unit) override { opener_.begin(unit.name); }
  double open_finish(const WeightUnit &unit) override { return opener_.finish(unit.name); }
  void close_unit(const WeightUnit &unit) noexcept override { opener_.close(unit.name); }
  bool opens_here() const override { return opener_.here(); }
  std::string numerics() const override { return bundle_.format(); }
  int threads() const override { return computes() ? threads_ : 0; }
  std::uint64_t scratch_held() const override { return mixtures_.scratch_held(); }

 private:
  class Call;
  class Head;
  // Files of a package, as they were when they were compared with their checksums.
  using Compared = std::vector<std::pair<std::string, FileIdentity>>;
  struct HeadForm {
    bool samples = false, soft = false, logits = false;
  };

  // Whether the core's kernels compute a part of the model.
  bool computes() const { return core_head_ != nullptr || !mixture_of_.empty(); }
  void add_mixtures(const Json &entries);
  const PackageFunction &fitting(const Package &package, std::int64_t rows, const std::vector<std::int64_t> &kept) const;
  const PackageFunction &fitting_head(const Package &package, std::int64_t rows, const HeadForm &form) const;
  [[noreturn]] void too_long(const Package &package, std::int64_t rows, std::int64_t kept) const;
  void layers_of_segment(const LayersCall &call, const LayerSegment &segment);
  // `soft`: null where the function takes x alone.
  void replace_rows(const LoadedUnit &weights, std::int64_t rows, float *x, const float *soft);
  std::unique_ptr<OpenPackage> open_package(const std::string &name);
  // What has just been opened of a package is of the files that were compared: executors open them by their paths, where
  // another bundle may be by now. Throws Error (EK_FILE_CHANGED, EK_OPEN_FAILED).
  void require_unchanged(const std::string &package);
  void run(const Package &package, Call &call);

  const Bundle &bundle_;
  const int threads_;
  const PackagePrograms programs_;
  std::unique_ptr<CoreHead> core_head_;  // null: packages hold the head
  CorePrograms mixtures_;                // of layers with experts: what follows the products of their packages
  std::unordered_map<const WeightUnit *, const Program *> mixture_of_;  // by a layer's package
  std::unique_ptr<ThreadPool> pool_;     // of what is computed here
  const MakeExecutor make_;
  std::unique_ptr<PackageExecutor> executor_;
  std::unique_ptr<BundleFolder> files_;
  std::vector<std::vector<float>> inputs_, outputs_;  // of the call under way, by place
  std::vector<std::vector<float>> dense_;  // products of a layer under way, of all segments
  std::mutex mutex_;  // the opener's thread and the caller's
  std::unordered_map<std::string, std::vector<const PackageFunction *>> called_;  // when a package was last open
  std::unordered_map<std::string, Compared> compared_;  // packages, by name
  PackageOpener opener_;  // ends before what it uses
};

}  // namespace edgekit

#endif  // EDGEKIT_PACKAGES_PACKAGE_ENGINE_H
