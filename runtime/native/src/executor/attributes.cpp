#include "executor/attributes.h"

#include <cmath>

#include "error.h"
#include "executor/arrays.h"

namespace edgekit {
namespace {

template <typename... Parts>
[[noreturn]] void wrong(const std::string &where, const Parts &...parts) {
  fail(EK_MALFORMED_FILE, where, ": ", parts..., "; export the bundle again");
}

}  // namespace

std::int64_t whole_attribute(const std::string &where, const Json &json, const char *key, std::int64_t least,
                             std::int64_t most) {
  const std::int64_t value = json.at(key).integer();
  if (value < least || value > most) wrong(where, key, " is ", value, ", not ", least, "..", most);
  return value;
}

float finite_attribute(const std::string &where, const Json &json, const char *key) {
  const float value = static_cast<float>(json.at(key).number());
  if (!std::isfinite(value)) wrong(where, key, " is not a finite float32 number");
  return value;
}

Activation activation_attribute(const std::string &where, const Json &json) {
  const std::string &kind = json.at("kind").string();
  if (kind == "silu") return Activation::silu;
  if (kind == "gelu_tanh") return Activation::gelu_tanh;
  fail(EK_UNSUPPORTED_BUNDLE, where, ": this library does not know the activation ", kind);
}

RoutingRule routing_attributes(const std::string &where, const Json &json, std::int64_t experts) {
  RoutingRule rule;
  const std::string &score = json.at("score").string();
  if (score != "softmax" && score != "sigmoid") {
    fail(EK_UNSUPPORTED_BUNDLE, where, ": this library does not know the score ", score);
  }
  rule.sigmoid = score == "sigmoid";
  rule.normalize = json.at("normalize").boolean();
  rule.scale = finite_attribute(where, json, "scale");
  rule.experts = experts;
  rule.groups = whole_attribute(where, json, "groups", 1, experts);
  const std::int64_t size = experts / rule.groups;
  if (experts % rule.groups != 0 || (rule.groups > 1 && size < 2)) {
    wrong(where, "has ", rule.groups, " groups of ", experts, " experts, not of equal size and at least two experts each");
  }
  rule.kept_groups = whole_attribute(where, json, "kept_groups", 1, rule.groups);
  rule.capacity = whole_attribute(where, json, "capacity", 0, experts);
  if (rule.capacity > 0) rule.block = whole_attribute(where, json, "block", 1, kMaxElements);
  if (rule.capacity > 0 && rule.groups > 1) wrong(where, "has groups and a capacity; this library routes by one of them");
  const std::int64_t pool = rule.capacity > 0 ? rule.capacity : rule.groups > 1 ? rule.kept_groups * size : experts;
  rule.chosen = whole_attribute(where, json, "k", 1, pool);
  return rule;
}

}  // namespace edgekit
