// A runtime for packages outside of the library, behind the functions of ek_executor.
#ifndef EDGEKIT_PACKAGES_PLUGGED_EXECUTOR_H
#define EDGEKIT_PACKAGES_PLUGGED_EXECUTOR_H

#include <memory>
#include <string>
#include <vector>

#include "edgekit.h"
#include "packages/package_executor.h"
#include "session/engine.h"

namespace edgekit {

class PluggedExecutor final : public PackageExecutor {
 public:
  // `folder` is the bundle's. What the table points at must outlive this object. Throws Error (EK_INVALID_ARGUMENT) for a
  // table that lacks a function.
  PluggedExecutor(std::string folder, const ek_executor &table);

  std::unique_ptr<OpenPackage> open(const Package &package,
                                    const std::vector<const PackageFunction *> &expected) override;

 private:
  class Opened;

  class Told;

  // Throws Error (EK_ENGINE_FAILED) unless a function was done.
  void done(std::int32_t answer, const std::string &doing, const Told &told) const;

  const std::string folder_;
  const ek_executor table_;
  const std::string name_;
};

// An engine over it, for a bundle whose weights lie in packages. Throws Error: EK_UNSUPPORTED_BUNDLE for another one; see
// PackagePrograms.
std::unique_ptr<Engine> plugged_packages(Bundle &bundle, int threads, const ek_executor &table);

// An engine of packages that nobody runs: for plans of memory.
std::unique_ptr<Engine> planned_packages(Bundle &bundle, int threads);

}  // namespace edgekit

#endif  // EDGEKIT_PACKAGES_PLUGGED_EXECUTOR_H
