// A session of edgekit.h on a disk that fails on command, for tests in Python.
#include <memory>

#include "abi_guard.h"
#include "abi_session.h"
#include "edgekit.h"
#include "faulty_file.h"
#include "ring.h"

// Whether memory of weights is filled with 0xFF when it is released.
extern "C" EK_API void ekt_poison_released_runs(int32_t on) { edgekit::poison_released_runs(on != 0); }

// ek_session_open with a disk, see faulty(). Errors are told by ek_last_error.
extern "C" EK_API ek_status ekt_session_open(const char *bundle, const ek_session_options *options,
                                             edgekit_testing::OnReadPointer on_read, uint32_t refuse,
                                             int32_t uring_enters, ek_session **session) {
  return edgekit::guarded([&] {
    edgekit::SessionOptions wanted;
    wanted.threads = options->threads;
    wanted.memory_bytes = options->memory_bytes;
    wanted.resident_bytes = options->resident_bytes;
    wanted.positions = options->positions;
    wanted.canvas = options->canvas;
    const edgekit::FlashFile::Wrap disk = edgekit_testing::faulty(on_read, refuse, uring_enters);
    *session = std::make_unique<ek_session>(bundle, wanted, edgekit::core_engine(wanted), disk).release();
  });
}
