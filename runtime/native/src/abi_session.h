// The session behind the C ABI's opaque pointer.
#ifndef EDGEKIT_ABI_SESSION_H
#define EDGEKIT_ABI_SESSION_H

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "edgekit.h"
#include "error.h"
#include "owner_process.h"
#include "session/session.h"

struct ek_sequence {
  ek_session *session;
  std::unique_ptr<edgekit::Sequence> own;
  ek_sequence *next = nullptr;  // of those that go when the call under way is over
};

struct ek_session {
  ek_session(const std::string &bundle, const edgekit::SessionOptions &options, const edgekit::MakeEngine &make,
             const edgekit::FlashFile::Wrap &wrap = nullptr)
      : session(bundle, options, make, wrap) {}

  edgekit::OwnerProcess process;
  std::string io_mode;  // the text that the last statistics point at

  std::mutex gate;                          // of what follows; never held while an engine is called
  bool busy = false;                        // a call that changes it is under way
  bool closed = false;                      // it goes when that call is over
  ek_sequence *closed_sequences = nullptr;  // so do these
  const std::chrono::steady_clock::time_point opening = std::chrono::steady_clock::now();
  edgekit::Session session;                 // ends first: engines may call back meanwhile, and are refused
  const double load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - opening).count();
};

namespace edgekit {

// The session that a caller gave. Throws Error (EK_INVALID_ARGUMENT, EK_INVALID_STATE).
inline ek_session &required(ek_session *session) {
  if (session == nullptr) fail(EK_INVALID_ARGUMENT, "the session is null");
  session->process.check("the session");
  return *session;
}

// A sequence of this session; null stands for its own. Throws Error (EK_INVALID_ARGUMENT).
inline Sequence &sequence_of(ek_session *session, ek_sequence *given) {
  if (given == nullptr) return session->session.sequence();
  if (given->session != session) fail(EK_INVALID_ARGUMENT, "the sequence belongs to another session");
  return *given->own;
}

// A call that changes the session: one at a time. An engine that calls back, or a second thread, is refused.
class Entry {
 public:
  // Throws Error (EK_INVALID_ARGUMENT, EK_INVALID_STATE).
  explicit Entry(ek_session *session);
  // Closes what was to be closed meanwhile, the session too.
  ~Entry();
  Entry(const Entry &) = delete;
  Entry &operator=(const Entry &) = delete;

  Session *operator->() const { return &session_.session; }
  Session &operator*() const { return session_.session; }

 private:
  ek_session &session_;
};

// Now, or when the call that is under way on its session is over.
void close(ek_sequence &sequence) noexcept;

// Throws Error (EK_INVALID_ARGUMENT).
SessionOptions session_options_of(const ek_session_options *given);

}  // namespace edgekit

#endif  // EDGEKIT_ABI_SESSION_H
