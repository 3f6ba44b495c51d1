#include "packages/package_programs.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "error.h"

namespace edgekit {
namespace {

constexpr int kVersion = 2;  // of the section and of what packages hold

// Bounds that no function comes near, so that products of sizes stay within 64 bits.
constexpr std::int64_t kMostPerAxis = std::int64_t{1} << 24;
constexpr std::size_t kMostElements = std::size_t{1} << 40;

// What a function may take or give.
struct Expected {
  std::string role;
  Role is;
  std::vector<std::int64_t> shape;
  std::size_t slot = 0;
  bool optional = false;
};

template <typename... Parts>
[[noreturn]] void wrong(const Bundle &bundle, const Parts &...parts) {
  fail(EK_MALFORMED_FILE, bundle.path(), ": ", parts..., "; export the bundle again");
}

std::string listed(const std::vector<std::int64_t> &shape) {
  std::string out = "[";
  for (const std::int64_t size : shape) out += (out.size() > 1 ? ", " : "") + std::to_string(size);
  return out + "]";
}

PackageKind kind_of(const Bundle &bundle, const std::string &at, const std::string &name) {
  if (name == "layers") return PackageKind::layers;
  if (name == "self_conditioning") return PackageKind::self_conditioning;
  if (name == "final") return PackageKind::final;
  if (name == "head") return PackageKind::head;
  wrong(bundle, at, ": is of kind ", name, ", not layers, self_conditioning, final or head");
}

Port read_port(const Bundle &bundle, const std::string &at, const Json &entry) {
  Port port;
  port.name = entry.at("name").string();
  const std::string &type = entry.at("dtype").string();
  bool known = false;
  for (const PortType each : {PortType::float32, PortType::float16, PortType::int32}) {
    if (type != name_of(each)) continue;
    port.type = each;
    known = true;
  }
  if (!known) wrong(bundle, at, ": ", port.name, " is ", type, ", not float32, float16 or int32");
  for (const Json &size : entry.at("shape").array()) {
    if (size.integer() < 1 || size.integer() > kMostPerAxis) wrong(bundle, at, ": ", port.name, " has a size of ", size.integer());
    port.shape.push_back(size.integer());
    port.elements *= static_cast<std::size_t>(size.integer());
    if (port.elements > kMostElements) wrong(bundle, at, ": ", port.name, " is larger than any memory");
  }
  return port;
}

// The size of an input's third axis, which tells how much prefix a layer with a window takes: converters like round sizes.
std::int64_t third_axis(const Json &inputs, const std::string &role) {
  for (const Json &each : inputs.array()) {
    if (each.at("role").string() != role) continue;
    const Json::Array &shape = each.at("shape").array();
    return shape.size() == 4 ? std::min(shape[2].integer(), kMostPerAxis) : 0;
  }
  return 0;
}

// The products of a layer that its program in the section `mixtures` takes; 0 where all of it is in its package.
std::size_t dense_products(const Json &programs, const LayerInfo &layer) {
  if (layer.mixture_program.empty()) return 0;
  const Json::Array &inputs = programs.at("mixtures").at(layer.mixture_program).at("inputs").array();
  return static_cast<std::size_t>(std::count_if(inputs.begin(), inputs.end(), [](const Json &each) {
    return each.string().rfind("dense.", 0) == 0;
  }));
}

class Reader {
 public:
  Reader(const Bundle &bundle, const std::string &name, std::vector<const LayerInfo *> layers, std::size_t dense,
         std::int64_t tokens)
      : bundle_(bundle),
        model_(bundle.model()),
        layers_(std::move(layers)),
        dense_(dense),
        tokens_(tokens),
        at_("package " + name) {}

  PackageFunction function(const std::string &name, PackageKind kind, const Json &entry) {
    PackageFunction out;
    out.name = name;
    const std::string at = at_ + ", function " + name;
    out.rows = entry.at("t").integer();
    const Json *prefix = entry.find("p");
    out.prefix = prefix == nullptr || prefix->is_null() ? 0 : prefix->integer();
    const bool layers = kind == PackageKind::layers;
    if (out.rows < 1 || out.rows > kMostPerAxis || out.prefix < 0 || out.prefix > (layers ? kMostPerAxis : 0)) {
      wrong(bundle_, at, ": is for ", out.rows, " positions after ", out.prefix, " of prefix");
    }
    const Json &inputs = entry.at("inputs"), &outputs = entry.at("outputs");
    std::vector<Expected> taken, given;
    if (layers) {
      expect_layers(out, inputs, at, taken, given);
    } else if (kind == PackageKind::head) {
      expect_head(out, inputs, outputs, taken, given);
    } else {
      const std::vector<std::int64_t> x{1, out.rows, model_.hidden};
      if (kind == PackageKind::final) taken = {{"x", Role::x, x}};
      if (kind == PackageKind::self_conditioning) taken = {{"embedded", Role::embedded, x}, {"soft", Role::soft, x}};
      given = {{"y", Role::y, x}};
    }
    out.inputs = ports(inputs, taken, at + ": input");
    out.outputs = ports(outputs, given, at + ": output");
    return out;
  }

 private:
  void expect_layers(PackageFunction &function, const Json &inputs, const std::string &at, std::vector<Expected> &taken,
                     std::vector<Expected> &given) {
    const std::int64_t t = function.rows;
    taken = {{"x", Role::x, {1, t, model_.hidden}}, {"phase", Role::phase, {1}, 0, true}};
    const std::vector<std::int64_t> rows{1, t, model_.hidden};
    if (dense_ == 0) given = {{"y", Role::y, rows}};
    for (std::size_t i = 0; i < dense_; ++i) given.push_back({"dense." + std::to_string(i), Role::dense, rows, i});
    if (model_.adapters > 0) taken.push_back({"adapter", Role::adapter, {t, 1}, 0, true});
    const auto take_once = [&](Expected wanted) {
      for (const Expected &each : taken) {
        if (each.role != wanted.role) continue;
        if (each.shape != wanted.shape) wrong(bundle_, at, ": layers that share ", wanted.role, " take it in different sizes");
        return;
      }
      taken.push_back(std::move(wanted));
    };
    for (std::size_t slot = 0; slot < layers_.size(); ++slot) {
      const LayerInfo &layer = *layers_[slot];
      const std::string own = std::to_string(slot);
      std::int64_t kept = layer.window == 0 ? function.prefix : std::min(function.prefix, layer.window - 1);
      if (kept > 0) {
        if (layer.window != 0) kept = std::max(kept, third_axis(inputs, "prefix_k." + own));
        const std::vector<std::int64_t> shape{1, layer.kv_heads, kept, layer.head_dim};
        taken.push_back({"prefix_k." + own, Role::prefix_keys, shape, slot});
        taken.push_back({"prefix_v." + own, Role::prefix_values, shape, slot});
      }
      function.prefixes.push_back(kept);
      take_once({layer.window == 0 ? "mask.full" : "mask." + std::to_string(layer.window), Role::mask, {t, kept + t}, slot});
      const Rope &rope = model_.ropes[layer.rope];
      const std::int64_t width = static_cast<std::int64_t>(rope.inverse_frequency.size());
      take_once({"cos." + rope.name, Role::cos, {t, width}, slot});
      take_once({"sin." + rope.name, Role::sin, {t, width}, slot});
      if (rope.beta != 0) take_once({"query_scale." + rope.name, Role::query_scale, {t, 1}, slot});
      given.push_back({"k." + own, Role::keys, {1, layer.kv_heads, t, layer.head_dim}, slot});
      given.push_back({"v." + own, Role::values, {1, layer.kv_heads, t, layer.head_dim}, slot});
    }
  }

  void expect_head(PackageFunction &function, const Json &inputs, const Json &outputs, std::vector<Expected> &taken,
                   std::vector<Expected> &given) {
    const auto has = [](const Json &rows, const char *role) {
      const Json::Array &all = rows.array();
      return std::any_of(all.begin(), all.end(), [&](const Json &each) { return each.at("role").string() == role; });
    };
    const std::int64_t t = function.rows;
    function.logits = has(outputs, "z");
    taken = {{"x", Role::x, {t, model_.hidden}}, {"temperature", Role::temperature, {1}}};
    if (function.logits) {
      given = {{"z", Role::z, {t, tokens_}}};
      return;
    }
    function.samples = has(inputs, "noise");
    function.soft = has(outputs, "soft");
    given = {{"max", Role::largest, {t}},
             {"argmax", Role::argmax, {t}},
             {"sum_others", Role::sum_others, {t}},
             {"sum_z_others", Role::sum_z_others, {t}}};
    if (function.samples) {
      taken.push_back({"noise", Role::noise, {t, tokens_}});
      given.push_back({"score", Role::score, {t}});
      given.push_back({"sample", Role::sample, {t}});
      given.push_back({"sample_z", Role::sample_z, {t}});
    }
    if (function.soft) given.push_back({"soft", Role::soft, {t, model_.hidden}});
  }

  std::vector<Port> ports(const Json &entries, const std::vector<Expected> &expected, const std::string &at) const {
    std::vector<Port> out;
    std::set<std::string> names, roles;
    for (const Json &entry : entries.array()) {
      Port port = read_port(bundle_, at, entry);
      const std::string &role = entry.at("role").string();
      const auto found = std::find_if(expected.begin(), expected.end(), [&](const Expected &each) { return each.role == role; });
      if (found == expected.end()) wrong(bundle_, at, " ", role, " is not expected");
      if (!names.insert(port.name).second || !roles.insert(role).second) wrong(bundle_, at, " ", role, " is there twice");
      if (port.shape != found->shape) {
        wrong(bundle_, at, " ", role, " has shape ", listed(port.shape), ", expected ", listed(found->shape));
      }
      const bool tokens = found->is == Role::argmax || found->is == Role::sample;
      if ((port.type == PortType::int32) != (tokens || (found->is == Role::phase && port.type == PortType::int32))) {
        wrong(bundle_, at, " ", role, " is of the wrong type");
      }
      port.role = found->is;
      port.slot = found->slot;
      out.push_back(std::move(port));
    }
    for (const Expected &each : expected) {
      if (!each.optional && roles.count(each.role) == 0) wrong(bundle_, at, " ", each.role, " is missing");
    }
    return out;
  }

  const Bundle &bundle_;
  const Model &model_;
  const std::vector<const LayerInfo *> layers_;
  const std::size_t dense_;
  const std::int64_t tokens_;
  const std::string at_;
};

}  // namespace

const char *name_of(PortType type) {
  switch (type) {
    case PortType::float16: return "float16";
    case PortType::int32: return "int32";
    default: return "float32";
  }
}

PackagePrograms::PackagePrograms(const Bundle &bundle, const Json &programs) {
  const std::string layout = bundle.format() + "-" + std::to_string(kVersion);
  const Json *found = programs.find("layout");
  const std::string own = found != nullptr && found->kind() == Json::Kind::string ? found->string() : "none";
  if (own != layout) {
    fail(EK_UNSUPPORTED_VERSION, bundle.path(), ": packages of layout ", own, ", this library reads ", layout,
         "; update edgekit or export the bundle again");
  }
  for (const auto &[name, entry] : programs.at("packages").object()) add(bundle, programs, name, entry);
  if (const Json *compiled = programs.find("compiled")) {
    for (const auto &[chip, files] : compiled->object()) {
      for (const Json &file : files.array()) compiled_[chip].push_back(file.string());
    }
  }
  find_lengths(bundle);
}

void PackagePrograms::add(const Bundle &bundle, const Json &programs, const std::string &name, const Json &entry) {
  Package out;
  out.name = name;
  out.path = entry.at("path").string();
  for (const Json &file : entry.at("files").array()) {
    if (file.string().rfind(out.path + "/", 0) != 0) wrong(bundle, "package ", name, ": its files are not below ", out.path);
    out.files.push_back(file.string());
  }
  std::vector<const LayerInfo *> layers;
  for (const LayerInfo &layer : bundle.model().layers) {
    if (layer.run != name) continue;
    layers.push_back(&layer);
    out.dense = dense_products(programs, layer);
  }
  const Json *tokens = entry.find("rows");
  Reader reader(bundle, name, std::move(layers), out.dense, tokens == nullptr ? 0 : tokens->integer());
  const Json::Object &functions = entry.at("functions").object();
  if (functions.empty()) wrong(bundle, "package ", name, " has no functions");
  std::optional<PackageKind> kind;
  for (const auto &[function, description] : functions) {
    const std::string at = "package " + name + ", function " + function;
    const PackageKind own = kind_of(bundle, at, description.at("kind").string());
    if (kind.value_or(own) != own) wrong(bundle, "package " + name, ": its functions are of several kinds");
    kind = out.kind = own;
  }
  for (const auto &[function, description] : functions) {
    out.functions.push_back(reader.function(function, out.kind, description));
  }
  packages_.emplace(name, std::move(out));
}

// What the session calls packages as is what they are: chunks of layers and tiles of the head were found by their names.
void PackagePrograms::find_lengths(const Bundle &bundle) {
  const auto check = [&](const WeightUnit &unit, PackageKind kind) -> const Package & {
    const Package &own = of(unit);
    if (own.kind != kind) wrong(bundle, "package ", unit.name, " is of another kind than the model needs there");
    return own;
  };
  check(bundle.final(), PackageKind::final);
  if (bundle.self_conditioning() != nullptr) check(*bundle.self_conditioning(), PackageKind::self_conditioning);
  for (const BundleTile &tile : bundle.scores()) {
    if (tile.unit->run == nullptr) check(*tile.unit, PackageKind::head);
  }
  bool first = true;
  std::set<std::pair<std::int64_t, std::int64_t>> common;
  for (const BundleChunk &chunk : bundle.chunks()) {
    std::set<std::pair<std::int64_t, std::int64_t>> own;
    for (const PackageFunction &each : check(*chunk.unit, PackageKind::layers).functions) {
      const std::pair<std::int64_t, std::int64_t> length(each.rows, each.prefix);
      if (first || common.count(length) != 0) own.insert(length);
    }
    common = std::move(own);
    first = false;
  }
  if (common.empty()) wrong(bundle, "the packages of layers have no lengths in common");
  lengths_.assign(common.begin(), common.end());
}

}  // namespace edgekit
