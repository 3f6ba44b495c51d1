// Flash file and ring, for tests in Python. Functions return a status; the message of an error is ekt_reading_error.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "edgekit.h"
#include "error.h"
#include "faulty_file.h"
#include "flash_file.h"
#include "ring.h"

namespace {

using edgekit::AlignedMemory;
using edgekit::FlashFile;
using edgekit::FlashOptions;
using edgekit::Ring;
using edgekit::Run;

thread_local std::string text;

template <typename Function>
ek_status guarded(Function function) {
  try {
    function();
    return EK_OK;
  } catch (const edgekit::Error &error) {
    text = error.what();
    return error.status();
  } catch (const std::exception &error) {
    text = error.what();
    return EK_INTERNAL;
  }
}

FlashFile &file_of(void *file) { return *static_cast<FlashFile *>(file); }
Ring &ring_of(void *ring) { return *static_cast<Ring *>(ring); }

std::vector<const Run *> runs_of(void *file, const char *const *names, uint64_t count) {
  std::vector<const Run *> runs;
  for (uint64_t i = 0; i < count; ++i) runs.push_back(&file_of(file).layout().run(names[i]));
  return runs;
}

}  // namespace

extern "C" {

EK_API const char *ekt_reading_error(void) { return text.c_str(); }

// `on_read`, `refuse`, `uring_enters`: see faulty().
EK_API ek_status ekt_flash_open(const char *path, int32_t threads, uint64_t chunk_bytes, int32_t direct,
                                int32_t io_uring, edgekit_testing::OnReadPointer on_read, uint32_t refuse,
                                int32_t uring_enters, void **out) {
  return guarded([&] {
    FlashOptions options;
    options.threads = threads;
    options.chunk_bytes = chunk_bytes;
    options.direct = direct != 0;
    options.io_uring = io_uring != 0;
    *out = new FlashFile(path, options, edgekit_testing::faulty(on_read, refuse, uring_enters));
  });
}

EK_API void ekt_flash_close(void *file) { delete static_cast<FlashFile *>(file); }

EK_API const char *ekt_flash_io_mode(void *file) {
  text = file_of(file).io_mode();
  return text.c_str();
}

// bytes_read, runs_read, fallbacks, short_reads, interrupts
EK_API void ekt_flash_statistics(void *file, uint64_t *counts, double *verify_seconds) {
  const edgekit::FlashStatistics now = file_of(file).statistics();
  const uint64_t all[] = {now.bytes_read, now.runs_read, now.fallbacks, now.short_reads, now.interrupts};
  std::memcpy(counts, all, sizeof all);
  *verify_seconds = now.verify_seconds;
}

EK_API ek_status ekt_flash_read(void *file, const char *run, uint8_t *buffer) {
  return guarded([&] { file_of(file).read(file_of(file).layout().run(run), buffer); });
}

EK_API ek_status ekt_flash_verify(void *file, const char *run) {
  return guarded([&] { file_of(file).verify(file_of(file).layout().run(run)); });
}

EK_API ek_status ekt_flash_read_bytes(void *file, uint64_t offset, uint64_t size, void *out) {
  return guarded([&] { file_of(file).read_bytes(offset, size, out); });
}

EK_API ek_status ekt_ring_open(void *file, uint64_t bytes, void **out) {
  return guarded([&] { *out = new Ring(file_of(file), bytes); });
}

EK_API void ekt_ring_close(void *ring) { delete static_cast<Ring *>(ring); }

EK_API uint64_t ekt_ring_capacity(void *ring) { return ring_of(ring).capacity(); }

EK_API ek_status ekt_ring_schedule(void *ring, void *file, const char *const *names, uint64_t count) {
  return guarded([&] { ring_of(ring).schedule(runs_of(file, names, count)); });
}

EK_API ek_status ekt_ring_take(void *ring, void *file, const char *run, const uint8_t **out) {
  return guarded([&] { *out = ring_of(ring).take(file_of(file).layout().run(run)); });
}

EK_API int32_t ekt_ring_ready(void *ring, void *file, const char *run) {
  return ring_of(ring).ready(file_of(file).layout().run(run));
}

// Names of the next scheduled runs, one a line.
EK_API const char *ekt_ring_next(void *ring, uint64_t count) {
  text.clear();
  for (const Run *run : ring_of(ring).next(count)) text += run->name + "\n";
  return text.c_str();
}

EK_API ek_status ekt_ring_skip(void *ring, void *file, const char *const *names, uint64_t count) {
  return guarded([&] { ring_of(ring).skip(runs_of(file, names, count)); });
}

EK_API ek_status ekt_ring_release(void *ring, const uint8_t *data) {
  return guarded([&] { ring_of(ring).release(data); });
}

EK_API void ekt_ring_cancel(void *ring) { ring_of(ring).cancel(); }

EK_API const char *ekt_ring_inconsistency(void *ring) {
  text = ring_of(ring).inconsistency();
  return text.c_str();
}

// counts: bytes_read, runs_read, bytes_skipped, fallbacks; seconds: read, wait
EK_API void ekt_ring_statistics(void *ring, uint64_t *counts, double *seconds) {
  const edgekit::RingStatistics now = ring_of(ring).statistics();
  counts[0] = now.bytes_read;
  counts[1] = now.runs_read;
  counts[2] = now.bytes_skipped;
  counts[3] = now.fallbacks;
  seconds[0] = now.read_seconds;
  seconds[1] = now.wait_seconds;
}

// The address of a block of `size` bytes that lives as long as `*block`.
EK_API ek_status ekt_memory_open(uint64_t size, void **block, uint8_t **data) {
  return guarded([&] {
    auto memory = std::make_unique<AlignedMemory>(size);
    *data = memory->data();
    *block = memory.release();
  });
}

EK_API void ekt_memory_close(void *block) { delete static_cast<AlignedMemory *>(block); }

}  // extern "C"
