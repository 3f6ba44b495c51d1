// What tools/bench/flash_reader.py times: a file streamed through the ring, and the disk's limit.
#include <chrono>
#include <string>
#include <vector>

#include "disk_probe.h"
#include "edgekit.h"
#include "error.h"
#include "flash_file.h"
#include "ring.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

thread_local std::string message;

template <typename Function>
ek_status guarded(Function function) {
  try {
    function();
    return EK_OK;
  } catch (const edgekit::Error &error) {
    message = error.what();
    return error.status();
  } catch (const std::exception &error) {
    message = error.what();
    return EK_INTERNAL;
  }
}

}  // namespace

extern "C" {

EK_API const char *ekt_bench_reading_error(void) { return message.c_str(); }

// Streams every run of the file `passes` times through a ring; the consumer gives every run back at once. Opening is
// not timed. `seconds` and `verify_seconds`: one number per pass; the first pass hashes. `bytes`: of one pass.
EK_API ek_status ekt_bench_stream(const char *path, int32_t threads, uint64_t chunk_bytes, int32_t direct,
                                  int32_t io_uring, uint64_t ring_bytes, int32_t passes, double *seconds,
                                  double *verify_seconds, uint64_t *bytes, char *mode, uint64_t mode_size) {
  return guarded([&] {
    edgekit::FlashOptions options;
    options.threads = threads;
    options.chunk_bytes = chunk_bytes;
    options.direct = direct != 0;
    options.io_uring = io_uring != 0;
    edgekit::FlashFile file(path, options);
    edgekit::Ring ring(file, ring_bytes);
    std::vector<const edgekit::Run *> runs;
    for (const edgekit::Run &run : file.layout().runs) runs.push_back(&run);
    double verified = 0;
    for (int32_t pass = 0; pass < passes; ++pass) {
      const Clock::time_point started = Clock::now();
      ring.schedule(runs);
      for (const edgekit::Run *run : runs) ring.release(ring.take(*run));
      seconds[pass] = seconds_since(started);
      const double so_far = file.statistics().verify_seconds;
      verify_seconds[pass] = so_far - verified;
      verified = so_far;
    }
    *bytes = ring.statistics().bytes_read / static_cast<uint64_t>(passes);
    const std::string found = file.io_mode();
    mode[found.copy(mode, mode_size - 1)] = '\0';
  });
}

// The limit: threads that read bytes offset..offset+bytes (multiples of chunk_bytes) in turns past the page cache into
// one buffer each, whose pages are there already, and do nothing with them.
EK_API ek_status ekt_bench_limit(const char *path, int32_t threads, uint64_t chunk_bytes, uint64_t offset,
                                 uint64_t bytes, double *seconds) {
  return guarded([&] {
    *seconds = edgekit::read_stretch(path, threads, chunk_bytes, offset, bytes).seconds;
  });
}

}  // extern "C"
