// The functions of edgekit.h that measure.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "abi_guard.h"
#include "abi_session.h"
#include "bench/machine.h"
#include "bench/probe.h"
#include "bench/recorder.h"
#include "bench/report.h"
#include "bundle_folder.h"
#include "disk_probe.h"
#include "owner_process.h"
#include "session/process.h"

struct ek_bench {
  ek_bench(ek_session &of, edgekit::BenchOptions options, std::string given)
      : session(of), about(std::move(given)), recorder(of.session, std::move(options)) {}

  edgekit::OwnerProcess process;
  ek_session &session;
  const std::string about;
  edgekit::Recorder recorder;
};

namespace edgekit {
namespace {

constexpr std::int64_t kMostSpans = std::int64_t{1} << 24;

ek_bench &opened(ek_bench *bench) {
  if (bench == nullptr) fail(EK_INVALID_ARGUMENT, "the bench is null");
  bench->process.check("the bench");
  return *bench;
}

std::string text_of(const char *given, const char *name) {
  if (given == nullptr) fail(EK_INVALID_ARGUMENT, name, " is null");
  return given;
}

std::uint64_t &place(std::uint64_t *size) {
  if (size == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the size");
  return *size;
}

BenchEvent event_of(std::int32_t kind) {
  return kind == EK_EVENT_DRAFT ? BenchEvent::draft : kind == EK_EVENT_DONE ? BenchEvent::done : BenchEvent::committed;
}

void tell(Recorder &recorder, std::int64_t sequence, const ek_event &event) {
  if (event.kind != EK_EVENT_DRAFT && event.kind != EK_EVENT_COMMITTED && event.kind != EK_EVENT_DONE) return;
  recorder.tell(sequence, event_of(event.kind), event.start + event.count);
  if (event.statistics == nullptr) return;
  const ek_generation_statistics found =
      read_struct<ek_generation_statistics>(event.statistics, ek_generation_statistics{}, "ek_generation_statistics");
  BenchSequence counted;
  counted.committed_tokens = found.committed_tokens;
  counted.canvases = found.canvases;
  counted.denoising_steps = found.denoising_steps;
  counted.forwards = found.forwards;
  counted.prefills = found.prefills;
  counted.projections = found.projections;
  counted.rows = found.rows;
  recorder.count(sequence, counted);
}

// The callback of ek_bench_generate, which its caller's follows.
struct Told {
  Recorder *recorder;
  ek_event_callback callback;
  void *user_data;

  static std::int32_t event(const ek_event *event, void *user_data) {
    const Told &own = *static_cast<Told *>(user_data);
    const ek_status status = guarded([&] { tell(*own.recorder, 0, *event); });
    if (status != EK_OK) return 1;
    return own.callback == nullptr ? 0 : own.callback(event, own.user_data);
  }
};

}  // namespace
}  // namespace edgekit

using namespace edgekit;

ek_status ek_bench_open(ek_session *session, const ek_bench_options *options, ek_bench **bench) noexcept {
  return guarded([&] {
    if (bench == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the bench");
    *bench = nullptr;
    ek_session &of = edgekit::required(session);
    const ek_bench_options given = read_struct<ek_bench_options>(options, EK_BENCH_OPTIONS_INIT, "ek_bench_options");
    if (given.spans < 0 || given.spans > kMostSpans) {
      fail(EK_INVALID_ARGUMENT, "ek_bench_options.spans is ", given.spans, "; it must be 0..", kMostSpans);
    }
    BenchOptions wanted;
    if (given.interval_milliseconds != 0) wanted.interval = std::chrono::milliseconds(given.interval_milliseconds);
    wanted.spans = static_cast<std::size_t>(given.spans);
    if (given.joules != nullptr) {
      wanted.joules = [joules = given.joules, user = given.user_data] { return joules(user); };
    }
    const std::string about = checked_object(given.about == nullptr ? "{}" : given.about, "ek_bench_options.about");
    *bench = std::make_unique<ek_bench>(of, std::move(wanted), about).release();
  });
}

void ek_bench_close(ek_bench *bench) noexcept {
  // Of a bench that was opened before a fork the thread stays with the parent.
  if (bench != nullptr && bench->process.here()) delete bench;
}

ek_status ek_bench_begin(ek_bench *bench, const char *label, int64_t prompt_tokens) noexcept {
  return guarded([&] {
    Recorder &recorder = opened(bench).recorder;
    const std::string given = text_of(label, "the label");
    if (prompt_tokens < 0) fail(EK_INVALID_ARGUMENT, "prompt_tokens is ", prompt_tokens, "; it must be at least 0");
    const Entry own(&bench->session);
    recorder.begin(given, prompt_tokens);
  });
}

ek_status ek_bench_tell(ek_bench *bench, int64_t sequence, const ek_event *event) noexcept {
  return guarded([&] {
    Recorder &recorder = opened(bench).recorder;
    if (event == nullptr) fail(EK_INVALID_ARGUMENT, "the event is null");
    ek_event known{};
    known.struct_size = sizeof known;
    edgekit::tell(recorder, sequence, read_struct<ek_event>(event, known, "ek_event"));
  });
}

ek_status ek_bench_end(ek_bench *bench) noexcept {
  return guarded([&] {
    Recorder &recorder = opened(bench).recorder;
    const Entry own(&bench->session);
    recorder.end();
  });
}

ek_status ek_bench_drop(ek_bench *bench) noexcept {
  return guarded([&] {
    Recorder &recorder = opened(bench).recorder;
    const Entry own(&bench->session);
    recorder.drop();
  });
}

ek_status ek_bench_generate(ek_bench *bench, const char *label, const int64_t *prompt, int64_t count,
                            const ek_generate_options *options, ek_event_callback callback, void *user_data,
                            ek_generation_statistics *statistics) noexcept {
  ek_status status = ek_bench_begin(bench, label, count < 0 ? 0 : count);
  if (status != EK_OK) return status;
  Told told{&bench->recorder, callback, user_data};
  status = ek_generate(&bench->session, prompt, count, options, Told::event, &told, statistics);
  if (status == EK_OK) return ek_bench_end(bench);
  const std::string message = ek_last_error();
  const std::uint64_t bytes = ek_last_error_bytes();
  bench->recorder.drop();
  return remember(status, message.c_str(), bytes);
}

ek_status ek_bench_get_report(ek_bench *bench, char *buffer, uint64_t capacity, uint64_t *size) noexcept {
  return guarded([&] {
    ek_bench &own = opened(bench);
    const Entry entry(&own.session);
    fill(bench_report(own.recorder, own.about, own.session.load_seconds), "the report", buffer, capacity, place(size));
  });
}

ek_status ek_describe_machine(char *buffer, uint64_t capacity, uint64_t *size) noexcept {
  return guarded([&] { fill(machine_json(machine_facts()), "the description", buffer, capacity, place(size)); });
}

ek_status ek_probe_processor(int32_t threads, double seconds, ek_processor_probe *found) noexcept {
  return guarded([&] {
    const ProcessorProbe probe = probe_processor(threads == 0 ? usable_cores() : threads, seconds);
    ek_processor_probe made{};
    made.threads = probe.threads;
    made.int8_operations = probe.int8_operations;
    made.float_operations = probe.float_operations;
    made.memory_bytes = probe.memory_bytes;
    made.int8_instructions = probe.int8_instructions;
    made.float_instructions = probe.float_instructions;
    made.product_operations = probe.product_operations;
    made.few_row_operations = probe.few_row_operations;
    made.attention_operations = probe.attention_operations;
    write_struct(found, made, "ek_processor_probe");
  });
}

ek_status ek_probe_disk(const char *path, double seconds, ek_disk_probe *found) noexcept {
  return guarded([&] {
    const DiskProbe probe = probe_disk(text_of(path, "the path"), seconds);
    ek_disk_probe made{};
    made.direct = probe.direct;
    made.bytes_per_second = probe.bytes_per_second;
    made.seconds = probe.seconds;
    made.bytes = probe.bytes;
    write_struct(found, made, "ek_disk_probe");
  });
}

ek_status ek_describe_limits(const char *bundle, double processor_seconds, double disk_seconds, char *buffer,
                             uint64_t capacity, uint64_t *size) noexcept {
  return guarded([&] {
    const std::string folder = text_of(bundle, "the path of the bundle");
    std::uint64_t &wanted = place(size);
    // Asking for the size would measure, too.
    if (buffer == nullptr) fail(EK_INVALID_ARGUMENT, "the buffer is null");
    if (capacity < EK_LIMITS_SIZE)
      fail(EK_BUFFER_TOO_SMALL, "the buffer has ", capacity, " bytes; give it EK_LIMITS_SIZE, ", EK_LIMITS_SIZE);
    std::optional<double> disk;
    try {
      const DiskProbe probe = probe_disk(BundleFolder(folder).open_weights(FlashOptions{})->path(), disk_seconds);
      if (probe.direct) disk = probe.bytes_per_second;
    } catch (const Error &error) {
      // Whoever opens the bundle to run it says what is wrong with it.
      if (error.status() == EK_INVALID_ARGUMENT) throw;
    }
    fill(limits_json(probe_processor(usable_cores(), processor_seconds), disk), "the limits", buffer, capacity, wanted);
  });
}

ek_status ek_process_get_memory(ek_process_memory *memory) noexcept {
  return guarded([&] {
    const ProcessMemory found = process_memory();
    ek_process_memory made{};
    made.resident = found.resident;
    made.anonymous = found.anonymous;
    made.file = found.file;
    made.peak = std::max(process_peak_bytes(), found.resident);  // the system counts the former less often
    write_struct(memory, made, "ek_process_memory");
  });
}
