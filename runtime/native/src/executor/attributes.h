// Attributes of a program's operators in a manifest. `where` begins the messages of the errors that are thrown:
// EK_MALFORMED_FILE, and EK_UNSUPPORTED_BUNDLE for a name that this library does not know.
#ifndef EDGEKIT_EXECUTOR_ATTRIBUTES_H
#define EDGEKIT_EXECUTOR_ATTRIBUTES_H

#include <cstdint>
#include <string>

#include "json.h"
#include "kernels/matrix.h"
#include "kernels/routing.h"

namespace edgekit {

// An integer of least..most.
std::int64_t whole_attribute(const std::string &where, const Json &json, const char *key, std::int64_t least,
                             std::int64_t most);

// A number that float32 holds.
float finite_attribute(const std::string &where, const Json &json, const char *key);

// That of the key "kind".
Activation activation_attribute(const std::string &where, const Json &json);

// The rule by which rows choose among so many experts.
RoutingRule routing_attributes(const std::string &where, const Json &json, std::int64_t experts);

}  // namespace edgekit

#endif  // EDGEKIT_EXECUTOR_ATTRIBUTES_H
