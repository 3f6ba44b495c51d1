// The session functions of edgekit.h: translation between the C ABI and the C++ inside, no logic of their own.
#include "abi_session.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "abi_guard.h"
#include "abi_head.h"
#include "session/model.h"

namespace edgekit {
namespace {

struct LastError {
  std::string message;
  std::uint64_t bytes = 0;
  std::int64_t segment = -1;
};

LastError &last_error() {
  thread_local LastError error;
  return error;
}

// False: another call is under way.
bool enter(ek_session &session) {
  const std::lock_guard<std::mutex> lock(session.gate);
  return !std::exchange(session.busy, true);
}

void leave(ek_session &session) noexcept {
  for (bool closed = false; !closed;) {
    ek_sequence *sequence = nullptr;
    {
      const std::lock_guard<std::mutex> lock(session.gate);
      sequence = std::exchange(session.closed_sequences, nullptr);
      if (sequence == nullptr) {
        closed = session.closed;
        session.busy = closed;  // while it ends, engines that call back are refused
        if (!closed) return;
      }
    }
    while (sequence != nullptr) delete std::exchange(sequence, sequence->next);
  }
  delete &session;
}

}  // namespace

Entry::Entry(ek_session *session) : session_(required(session)) {
  if (session_.session.opens_here()) {
    fail(EK_INVALID_STATE, "the session cannot be called by what opens its packages, for which it waits");
  }
  if (!enter(session_)) {
    fail(EK_INVALID_STATE, "the session is in another call: engines and callbacks must not call it, nor two threads at "
         "the same time");
  }
}

Entry::~Entry() { leave(session_); }

void close(ek_sequence &sequence) noexcept {
  ek_session &session = *sequence.session;
  {
    const std::lock_guard<std::mutex> lock(session.gate);
    sequence.next = std::exchange(session.closed_sequences, &sequence);
    if (std::exchange(session.busy, true)) return;
  }
  leave(session);
}

SessionOptions session_options_of(const ek_session_options *given) {
  const ek_session_options options =
      read_struct<ek_session_options>(given, EK_SESSION_OPTIONS_INIT, "ek_session_options");
  SessionOptions out;
  out.threads = options.threads;
  out.memory_bytes = options.memory_bytes;
  out.resident_bytes = options.resident_bytes;
  out.positions = options.positions;
  out.canvas = options.canvas;
  out.sequences = options.sequences;
  out.segments = options.segments;
  out.cached = options.cached;
  out.adapter = options.adapter;
  return out;
}

ek_status remember(ek_status status, const char *message, std::uint64_t bytes, std::int64_t segment) noexcept {
  last_error().bytes = bytes;
  last_error().segment = segment;
  try {
    last_error().message = message;
  } catch (...) {
    // No memory for the text: ek_last_error falls back to none rather than to that of an earlier failure.
    last_error().message.clear();
  }
  return status;
}

}  // namespace edgekit

using namespace edgekit;

const char *ek_last_error(void) noexcept { return last_error().message.c_str(); }

uint64_t ek_last_error_bytes(void) noexcept { return last_error().bytes; }

int64_t ek_last_error_segment(void) noexcept { return last_error().segment; }

ek_status ek_session_open(const char *bundle, const ek_session_options *options, ek_session **session) noexcept {
  return ek_session_open_engine(bundle, options, nullptr, session);
}

void ek_session_close(ek_session *session) noexcept {
  // Threads that are not there cannot be joined: what a child of fork() holds of a session goes with the child.
  if (session == nullptr || !session->process.here()) return;
  {
    const std::lock_guard<std::mutex> lock(session->gate);
    if (session->busy) {
      session->closed = true;
      return;
    }
    session->busy = true;
  }
  delete session;
}

ek_status ek_session_get_info(ek_session *session, ek_session_info *info) noexcept {
  return guarded([&] {
    const Session &own = required(session).session;
    const MemoryNeeds &needs = own.needs();
    ek_session_info made{};
    made.threads = own.threads();
    made.vocabulary = own.model().vocabulary;
    made.hidden_size = own.model().hidden;
    made.prefix_length = own.sequence().prefix_length();
    made.process_bytes = needs.process;
    made.prefix_bytes = needs.prefix;
    made.activation_bytes = needs.activations;
    made.scratch_bytes = needs.scratch;
    made.head_bytes = needs.head;
    made.allowance_bytes = needs.allowance;
    made.canvas_length = own.model().canvas_length;
    made.max_positions = own.model().max_positions;
    made.causal_prefix = own.model().causal_prefix;
    made.prefix_block = own.model().prefix_block;
    made.role_head = own.model().role_width != 0;
    made.uncached_length = static_cast<std::int64_t>(own.sequence().uncached().size());
    made.prefill_rows = own.prefill_rows();
    write_struct(info, made, "ek_session_info");
  });
}

ek_status ek_session_reset(ek_session *session) noexcept {
  return guarded([&] { Entry(session)->sequence().forget(); });
}

ek_status ek_session_idle(ek_session *session) noexcept {
  return guarded([&] { Entry(session)->idle(); });
}

ek_status ek_session_limit_resident(ek_session *session, uint64_t bytes) noexcept {
  return guarded([&] { required(session).session.limit_resident(bytes); });
}

ek_status ek_session_prefill(ek_session *session, const int64_t *ids, int64_t count) noexcept {
  return guarded([&] { Entry(session)->sequence().encode_behind(ids, count); });
}

ek_status ek_session_denoise(ek_session *session, const int64_t *ids, int64_t count, const float *soft,
                             const ek_head_request *request, const ek_head_output *output) noexcept {
  return guarded([&] {
    const Entry own(session);
    const AskedHead wanted = asked_head(request, output);
    deliver(own->sequence().denoise(ids, count, wanted.request, soft), wanted.output);
  });
}

ek_status ek_session_project(ek_session *session, const ek_head_request *request,
                             const ek_head_output *output) noexcept {
  return guarded([&] {
    const Entry own(session);
    const AskedHead wanted = asked_head(request, output);
    deliver(own->sequence().project(wanted.request), wanted.output);
  });
}

ek_status ek_session_get_statistics(ek_session *session, ek_session_statistics *statistics) noexcept {
  return guarded([&] {
    ek_session &own = required(session);
    const SessionStatistics found = own.session.statistics();
    own.io_mode = found.io_mode;
    ek_session_statistics made{};
    made.io_mode = own.io_mode.c_str();
    made.pinned_bytes = found.pinned_bytes;
    made.ring_bytes = found.ring_bytes;
    made.streamed_bytes_per_step = found.streamed_bytes_per_step;
    made.bytes_read = found.bytes_read;
    made.scratch_bytes = found.scratch_bytes;
    made.io_seconds = found.io_seconds;
    made.io_wait_seconds = found.io_wait_seconds;
    made.pass_seconds = found.pass_seconds;
    made.bytes_skipped = found.bytes_skipped;
    made.bytes_exchanged = found.bytes_exchanged;
    made.expert_layers = found.experts.layers;
    made.experts_wanted = found.experts.wanted;
    made.experts_again = found.experts.again;
    made.prefill_passes = found.passes.prefills;
    made.denoise_passes = found.passes.denoises;
    made.head_passes = found.passes.heads;
    made.pass_rows = found.passes.rows;
    made.prefill_seconds = found.passes.prefill_seconds;
    made.denoise_seconds = found.passes.denoise_seconds;
    made.head_seconds = found.passes.head_seconds;
    write_struct(statistics, made, "ek_session_statistics");
  });
}
