// The packages of a bundle, as the manifest describes them (see runtime/bundle/packages.py): their functions, and what each
// takes and gives.
#ifndef EDGEKIT_PACKAGES_PACKAGE_PROGRAMS_H
#define EDGEKIT_PACKAGES_PACKAGE_PROGRAMS_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "json.h"
#include "session/bundle.h"

namespace edgekit {

// What an array is to the engine.
enum class Role {
  x, phase, adapter, prefix_keys, prefix_values, cos, sin, query_scale, mask,  // of layers
  embedded, soft,                                                             // of self-conditioning
  temperature, noise,                                                         // of the head
  y, keys, values, dense,                                                     // what comes out
  largest, argmax, sum_others, sum_z_others, score, sample, sample_z, z
};

enum class PortType { float32, float16, int32 };

// As in manifests.
const char *name_of(PortType type);

// An array of a function, in or out.
struct Port {
  std::string name;
  Role role = Role::x;
  std::size_t slot = 0;  // the layer of a chunk that it belongs to; of several that share it, the first. Of `dense`: its number
  PortType type = PortType::float32;
  std::vector<std::int64_t> shape;
  std::size_t elements = 1;

  std::size_t bytes() const { return elements * (type == PortType::float16 ? 2 : 4); }
};

enum class PackageKind { layers, self_conditioning, final, head };

// A function of fixed sizes: for `rows` positions behind `prefixes` positions, which may differ from layer to layer.
struct PackageFunction {
  std::string name;
  std::int64_t rows = 0, prefix = 0;
  std::vector<Port> inputs, outputs;
  std::vector<std::int64_t> prefixes;  // of layers
  bool samples = false, soft = false, logits = false;  // of the head
};

struct Package {
  std::string name;
  std::string path;  // its folder, below the bundle's
  std::vector<std::string> files;
  PackageKind kind = PackageKind::final;
  std::vector<PackageFunction> functions;
  std::size_t dense = 0;  // products that functions give in place of y, of a layer whose experts are the core's
};

class PackagePrograms {
 public:
  // `programs` is the manifest's section. Throws Error: EK_UNSUPPORTED_VERSION for a layout that this library does not read,
  // EK_MALFORMED_FILE for what does not fit the model, so that arrays fit at every call.
  PackagePrograms(const Bundle &bundle, const Json &programs);

  const Package &of(const WeightUnit &unit) const { return packages_.at(unit.name); }
  const std::map<std::string, Package> &all() const { return packages_; }

  // Positions of a pass and of what is before it that every package of layers takes, ascending.
  const std::vector<std::pair<std::int64_t, std::int64_t>> &lengths() const { return lengths_; }

  // Files, relative to the bundle, of packages that were compiled for a chip, by its name.
  const std::map<std::string, std::vector<std::string>> &compiled() const { return compiled_; }

 private:
  void add(const Bundle &bundle, const Json &programs, const std::string &name, const Json &entry);
  void find_lengths(const Bundle &bundle);

  std::map<std::string, Package> packages_;
  std::vector<std::pair<std::int64_t, std::int64_t>> lengths_;
  std::map<std::string, std::vector<std::string>> compiled_;
};

}  // namespace edgekit

#endif  // EDGEKIT_PACKAGES_PACKAGE_PROGRAMS_H
