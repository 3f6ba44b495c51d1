#include "tvm/tvm_program.h"

#include <algorithm>
#include <sstream>

#include "error.h"
#include "executor/attributes.h"

namespace edgekit::tvm {
namespace {

constexpr std::size_t kMostArguments = 4096, kMostAxes = 8;
// Of a size, and of values of a position.
constexpr std::int64_t kMostElements = std::int64_t{1} << 31;

struct TypeName {
  const char *name;  // in the manifest
  const char *stored;
  DLDataType dtype;
};

// bfloat16 comes as its bits.
constexpr TypeName kTypes[] = {
    {"F32", "F32", {2, 32, 1}}, {"I64", "I64", {0, 64, 1}}, {"U8", "U8", {1, 8, 1}}, {"BF16", "BF16", {1, 16, 1}}};

std::string text(const std::vector<std::int64_t> &shape) {
  std::ostringstream out;
  out << '[';
  for (std::size_t i = 0; i < shape.size(); ++i) {
    out << (i != 0 ? ", " : "");
    if (shape[i] >= 0) {
      out << shape[i];
    } else {
      out << (shape[i] == kT ? 't' : shape[i] == kP ? 'p' : 's');
    }
  }
  out << ']';
  return out.str();
}

std::int64_t size_of(const std::string &where, const Json &json) {
  if (json.kind() == Json::Kind::string) {
    const std::string &length = json.string();
    if (length == "t") return kT;
    if (length == "p") return kP;
    if (length == "s") return kS;
    fail(EK_MALFORMED_FILE, where, " has the length ", length, ", which nobody knows; export the bundle again");
  }
  const std::int64_t size = json.integer();
  if (size < 1 || size > kMostElements) {
    fail(EK_MALFORMED_FILE, where, " has the size ", size, "; export the bundle again");
  }
  return size;
}

Argument parse_argument(const std::string &where, const Json &json) {
  Argument made;
  made.name = json.at("name").string();
  const std::string own = where + ": " + made.name;
  if (made.name.rfind("w.", 0) == 0) {
    made.is_weight = true;
    made.name.erase(0, 2);
  }
  const std::string &dtype = json.at("dtype").string();
  const auto known = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeName &t) { return t.name == dtype; });
  if (known == std::end(kTypes)) {
    fail(EK_UNSUPPORTED_BUNDLE, own, " is of the type ", dtype, ", which this library does not know; export the bundle again");
  }
  made.dtype = known->dtype;
  const Json::Array &sizes = json.at("shape").array();
  if (sizes.size() > kMostAxes) fail(EK_MALFORMED_FILE, own, " has ", sizes.size(), " axes; export the bundle again");
  for (const Json &size : sizes) made.shape.push_back(size_of(own, size));
  return made;
}

Function parse_function(const std::string &where, const Json &entry) {
  Function made;
  made.symbol = entry.at("function").string();
  const Json::Array &inputs = entry.at("inputs").array(), &outputs = entry.at("outputs").array();
  if (inputs.size() > kMostArguments || outputs.size() != 1) {
    fail(EK_MALFORMED_FILE, where, " has ", inputs.size(), " inputs and ", outputs.size(),
         " outputs, not one; export the bundle again");
  }
  for (const Json &input : inputs) made.inputs.push_back(parse_argument(where, input));
  made.output = parse_argument(where, outputs.front());
  const Json::Array &live = entry.at("live").array();
  std::uint64_t *const to[] = {&made.live_of_position, &made.live_besides};
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t count = i < live.size() ? live[i].integer() : -1;
    if (count < 0 || count > kMostElements) {
      fail(EK_MALFORMED_FILE, where, " does not say what memory it takes; export the bundle again");
    }
    *to[i] = static_cast<std::uint64_t>(count);
  }
  return made;
}

std::string name_or_none(const Json &json) { return json.is_null() ? std::string() : json.string(); }

}  // namespace

std::optional<WeightShape> matrix_of(const Argument &argument) {
  for (const auto &[suffix, columns] : {std::pair<std::string, std::int64_t>{".codes", kQuad}, {".packed", 2 * kQuad}}) {
    const std::size_t at = argument.name.rfind(suffix);
    if (at == std::string::npos || at + suffix.size() != argument.name.size() || argument.shape.size() != 4) continue;
    return WeightShape{argument.name.substr(0, at), true, argument.shape[0] * kPanelRows, argument.shape[1] * columns, 0};
  }
  return std::nullopt;
}

std::vector<std::int64_t> Argument::sizes(const Lengths &lengths) const {
  std::vector<std::int64_t> out;
  for (const std::int64_t size : shape) {
    out.push_back(size == kT ? lengths.t : size == kP ? lengths.p : size == kS ? lengths.t + lengths.p : size);
  }
  return out;
}

Program parse_program(const std::string &where, const std::string &name, const Json &entry, bool core) {
  const std::string own = where + ": program " + name;
  Program made;
  made.function = parse_function(own, entry);
  const Json *mask = entry.find("mask");
  if (mask == nullptr) return made;  // no layer
  made.layer = true;
  made.masked = mask->boolean();
  if (!core) {
    made.attention = parse_function(own + " (attention)", entry.at("attention"));
    made.prefix_attention = parse_function(own + " (attention over a prefix)", entry.at("prefix_attention"));
    for (const Function *each : {&*made.attention, &*made.prefix_attention}) {
      if (each->inputs.empty() || each->inputs.front().shape.size() != 4) {
        fail(EK_MALFORMED_FILE, own, " has attention without queries; export the bundle again");
      }
    }
  }
  if (const Json *experts = entry.find("experts")) {
    Experts &mixture = made.experts.emplace();
    mixture.count = whole_attribute(own, *experts, "count", 1, 1 << 20);
    mixture.width = whole_attribute(own, *experts, "width", 1, kMostElements);
    mixture.activation = activation_attribute(own, *experts);
    const Json &route = experts->at("route");
    mixture.rule = routing_attributes(own, route, mixture.count);
    mixture.bias = name_or_none(route.at("bias"));
    mixture.factors = name_or_none(route.at("expert_scale"));
    if (!core) mixture.one = parse_function(own + " (expert)", entry.at("expert"));
  }
  return made;
}

void check_arrays(const std::string &where, const Function &function, const Expected &expected) {
  const auto check = [&](const Argument &found, const std::vector<std::int64_t> &shape, bool integers) {
    const DLDataType wanted = integers ? kTypes[1].dtype : kTypes[0].dtype;
    if (found.shape == shape && found.dtype.code == wanted.code && found.dtype.bits == wanted.bits) return;
    fail(EK_MALFORMED_FILE, where, ": function ", function.symbol, ": ", found.name, " is ", text(found.shape), ", not ",
         integers ? "I64 " : "F32 ", text(shape), "; export the bundle again");
  };
  for (const Argument &input : function.inputs) {
    if (input.is_weight) continue;
    const auto known = expected.inputs.find(input.name);
    if (known == expected.inputs.end()) {
      fail(EK_MALFORMED_FILE, where, ": function ", function.symbol, " takes ", input.name,
           ", which is no input of it; export the bundle again");
    }
    check(input, known->second, input.name == "phase");
  }
  check(function.output, expected.output, false);
}

void check_weights(const std::string &where, const Function &function, const Run &run) {
  std::vector<WeightShape> matrices;
  for (const Argument &wanted : function.inputs) {
    if (!wanted.is_weight) continue;
    if (std::optional<WeightShape> matrix = matrix_of(wanted)) matrices.push_back(std::move(*matrix));
    const Tensor *tensor = run.find(wanted.name);
    if (tensor == nullptr) {
      fail(EK_MALFORMED_FILE, where, ": run ", run.name, " has no tensor ", wanted.name,
           ", which its program takes; export the bundle again");
    }
    const auto stored = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeName &t) {
      return t.stored == tensor->dtype && t.dtype.code == wanted.dtype.code && t.dtype.bits == wanted.dtype.bits;
    });
    if (stored == std::end(kTypes) || tensor->shape != wanted.shape) {
      fail(EK_MALFORMED_FILE, where, ": run ", run.name, ": tensor ", wanted.name, " is ", tensor->dtype, " ",
           text(tensor->shape), ", its program wants ", text(wanted.shape), "; export the bundle again");
    }
  }
  const WeightLayout limits(run, matrices);
}

}  // namespace edgekit::tvm
