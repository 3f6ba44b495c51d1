// The formats of bundles that sessions of the core run, without an engine from outside.
#ifndef EDGEKIT_SESSION_FORMATS_H
#define EDGEKIT_SESSION_FORMATS_H

#include <vector>

namespace edgekit {

// Those whose libraries are in the process now. A format that core_engine gets an engine for has its line here, and is
// chosen from then on among several bundles of a model, by whatever language asks.
std::vector<const char *> session_formats();

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_FORMATS_H
