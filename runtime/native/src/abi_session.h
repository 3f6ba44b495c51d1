// The session behind the C ABI's opaque pointer.
#ifndef EDGEKIT_ABI_SESSION_H
#define EDGEKIT_ABI_SESSION_H

#include <atomic>
#include <string>

#include "edgekit.h"
#include "error.h"
#include "owner_process.h"
#include "session/session.h"

struct ek_session {
  ek_session(const std::string &bundle, const edgekit::SessionOptions &options, const edgekit::MakeEngine &make,
             const edgekit::FlashFile::Wrap &wrap = nullptr)
      : session(bundle, options, make, wrap) {}

  edgekit::OwnerProcess process;
  edgekit::Session session;
  std::atomic<bool> busy{false};  // a call that changes it is under way
  std::string io_mode;            // the text that the last statistics point at
};

namespace edgekit {

// The session that a caller gave. Throws Error (EK_INVALID_ARGUMENT, EK_INVALID_STATE).
inline ek_session &required(ek_session *session) {
  if (session == nullptr) fail(EK_INVALID_ARGUMENT, "the session is null");
  session->process.check("the session");
  return *session;
}

// A call that changes the session: one at a time. An engine that calls back, or a second thread, is refused.
class Entry {
 public:
  // Throws Error (EK_INVALID_ARGUMENT, EK_INVALID_STATE).
  explicit Entry(ek_session *session) : session_(required(session)) {
    if (session_.busy.exchange(true)) {
      fail(EK_INVALID_STATE, "the session is in another call: engines and callbacks must not call it, nor two threads at "
           "the same time");
    }
  }
  ~Entry() { session_.busy = false; }
  Entry(const Entry &) = delete;
  Entry &operator=(const Entry &) = delete;

  Session *operator->() const { return &session_.session; }
  Session &operator*() const { return session_.session; }

 private:
  ek_session &session_;
};

// Throws Error (EK_INVALID_ARGUMENT).
SessionOptions session_options_of(const ek_session_options *given);

}  // namespace edgekit

#endif  // EDGEKIT_ABI_SESSION_H
