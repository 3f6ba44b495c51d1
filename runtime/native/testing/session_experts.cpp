// What a session of edgekit.h knows of its experts, for tests in Python.
#include <cstdint>

#include "abi_guard.h"
#include "abi_session.h"
#include "edgekit.h"
#include "session/experts.h"

extern "C" {

// counts: rows, passes, idle passes, and 1 where it is pinned.
EK_API ek_status ekt_session_expert(ek_session *session, uint64_t layer, uint64_t expert, uint64_t *counts) {
  return edgekit::guarded([&] {
    const edgekit::ExpertUse use = session->session.expert_use(layer, expert);
    counts[0] = use.rows;
    counts[1] = use.passes;
    counts[2] = use.idle_passes;
    counts[3] = use.pinned;
  });
}

}  // extern "C"
