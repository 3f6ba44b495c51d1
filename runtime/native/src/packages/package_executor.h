// What runs functions of packages: a system's own runtime. All else about packages is PackageEngine's.
#ifndef EDGEKIT_PACKAGES_PACKAGE_EXECUTOR_H
#define EDGEKIT_PACKAGES_PACKAGE_EXECUTOR_H

#include <memory>
#include <string>
#include <vector>

#include "packages/package_programs.h"

namespace edgekit {

// A package that is open. Used by one thread at a time; it may be made on another one.
class OpenPackage {
 public:
  virtual ~OpenPackage() = default;

  // An array for each input and output of the function, in its order, of its type and shape. Throws Error
  // (EK_ENGINE_FAILED).
  virtual void call(const PackageFunction &function, const std::vector<void *> &inputs,
                    const std::vector<void *> &outputs) = 0;
};

class PackageExecutor {
 public:
  virtual ~PackageExecutor() = default;
  // What is opened of a package, relative to the bundle: compared with the manifest before.
  virtual std::vector<std::string> files(const Package &package) const { return package.files; }

  // `expected`: functions that will most likely be called, to be made ready. Called on one thread, which is not that of
  // the calls. Throws Error (EK_ENGINE_FAILED).
  virtual std::unique_ptr<OpenPackage> open(const Package &package,
                                            const std::vector<const PackageFunction *> &expected) = 0;
};

}  // namespace edgekit

#endif  // EDGEKIT_PACKAGES_PACKAGE_EXECUTOR_H
