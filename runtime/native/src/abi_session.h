// The session behind the C ABI's opaque pointer.
#ifndef EDGEKIT_ABI_SESSION_H
#define EDGEKIT_ABI_SESSION_H

#include <string>

#include "edgekit.h"
#include "error.h"
#include "owner_process.h"
#include "session/session.h"

struct ek_session {
  ek_session(const std::string &bundle, const edgekit::SessionOptions &options,
             const edgekit::FlashFile::Wrap &wrap = nullptr)
      : session(bundle, options, wrap) {}

  edgekit::OwnerProcess process;
  edgekit::Session session;
  std::string io_mode;  // the text that the last statistics point at
};

namespace edgekit {

// The session that a caller gave. Throws Error (EK_INVALID_ARGUMENT, EK_INVALID_STATE).
inline ek_session &required(ek_session *session) {
  if (session == nullptr) fail(EK_INVALID_ARGUMENT, "the session is null");
  session->process.check("the session");
  return *session;
}

}  // namespace edgekit

#endif  // EDGEKIT_ABI_SESSION_H
