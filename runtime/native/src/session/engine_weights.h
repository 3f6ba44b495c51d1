// Weights that an engine keeps in memory of its own: they are brought to it while a session opens.
#ifndef EDGEKIT_SESSION_ENGINE_WEIGHTS_H
#define EDGEKIT_SESSION_ENGINE_WEIGHTS_H

#include <string>
#include <unordered_set>

#include "residency.h"
#include "session/bundle.h"
#include "session/engine.h"
#include "session/weight_store.h"

namespace edgekit {

// Has the engine keep the units of a plan that it is to keep, read ahead through memory of `plan.passing_bytes`. Gives the
// names of those that it keeps: the first one that it has no room for ends it. Throws Error.
std::unordered_set<std::string> keep_units(Bundle &bundle, Engine &engine, Borrower &borrower, const ResidencyPlan &plan);

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_ENGINE_WEIGHTS_H
