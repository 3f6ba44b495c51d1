// The session behind the C ABI's opaque pointer.
#ifndef EDGEKIT_ABI_SESSION_H
#define EDGEKIT_ABI_SESSION_H

#include <string>

#include "edgekit.h"
#include "session/session.h"

struct ek_session {
  ek_session(const std::string &bundle, const edgekit::SessionOptions &options) : session(bundle, options) {}

  edgekit::Session session;
  std::string io_mode;  // the text that the last statistics point at
};

#endif  // EDGEKIT_ABI_SESSION_H
