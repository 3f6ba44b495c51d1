#include "bench/report.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <optional>

#include "bench/json_writer.h"
#include "session/model.h"
#include "session/session_state.h"

namespace edgekit {
namespace {

const char *name_of(Pass kind) {
  return kind == Pass::denoise ? "denoise" : kind == Pass::prefill ? "prefill" : "head";
}

const char *name_of(BenchSpan::Kind kind) {
  return kind == BenchSpan::read ? "read" : kind == BenchSpan::wait ? "wait" : "use";
}

void member(JsonWriter &out, const char *name, const std::optional<double> &value) {
  out.name(name);
  value ? out.value(*value) : out.null();
}

// A table: names of columns once, then a list for each row.
template <typename Rows, typename Row>
void table(JsonWriter &out, const char *name, std::initializer_list<const char *> columns, const Rows &rows, Row &&row) {
  out.name(name).object([&] {
    out.name("columns").list([&] {
      for (const char *column : columns) out.value(std::string_view(column));
    });
    out.name("rows").list([&] {
      for (const auto &each : rows) out.list([&] { row(each); });
    });
  });
}

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
#if defined(_WIN32)
  gmtime_s(&parts, &now);
#else
  gmtime_r(&now, &parts);
#endif
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

void write_machine(JsonWriter &out, const MachineFacts &facts) {
  out.object([&] {
    out.member("system", std::string_view(facts.system));
    out.member("release", std::string_view(facts.release));
    out.member("architecture", std::string_view(facts.architecture));
    out.member("processor", std::string_view(facts.processor));
    out.member("device", std::string_view(facts.device));
    out.member("cores", facts.cores);
    out.member("memory_bytes", facts.memory_bytes);
    out.name("cpu_features").list([&] {
      for (const std::string &feature : facts.cpu_features) out.value(std::string_view(feature));
    });
  });
}

void write_session(JsonWriter &out, const Session::Implementation &own, const Session &session, double load_seconds) {
  const SessionOptions &options = own.options;
  const SessionPlan plan = session.plan();
  out.name("bundle").object([&] {
    out.member("digest", std::string_view(own.bundle.digest()));
    out.member("format", std::string_view(own.bundle.format()));
    out.member("layers", own.model().layers.size());
    out.member("vocabulary", own.model().vocabulary);
    out.member("weights_bytes", plan.weights);
    const BundleOrigin &origin = own.bundle.origin();
    const auto text = [&](const char *name, const std::string &value) {
      out.name(name);
      value.empty() ? out.null() : out.value(std::string_view(value));
    };
    const auto number = [&](const char *name, std::int64_t value) {
      out.name(name);
      value == 0 ? out.null() : out.value(value);
    };
    out.name("model").object([&] {
      text("name", origin.checkpoint);
      text("family", origin.family);
      number("parameters", origin.parameters);
      text("preset", origin.preset);
      number("group_size", origin.group_size);
      text("target", origin.target);
    });
  });
  out.name("session").object([&] {
    out.member("threads", session.threads());
    out.name("memory_bytes");
    options.memory_bytes == 0 ? out.null() : out.value(options.memory_bytes);
    out.name("resident_bytes");
    options.resident_bytes == UINT64_MAX ? out.null() : out.value(options.resident_bytes);
    out.member("positions", options.positions);
    out.member("canvas", options.canvas);
    out.member("sequences", options.sequences);
    out.member("adapter", options.adapter);
    out.member("load_seconds", load_seconds);
    out.member("io_mode", std::string_view(own.bundle.file().io_mode()));
  });
  out.name("plan").object([&] {
    out.member("process", plan.needs.process);
    out.member("prefix", plan.needs.prefix);
    out.member("activations", plan.needs.activations);
    out.member("scratch", plan.needs.scratch);
    out.member("head", plan.needs.head);
    out.member("allowance", plan.needs.allowance);
    out.member("pinned", plan.pinned);
    out.member("ring", plan.ring);
    out.member("streamed", plan.streamed);
    out.member("least_memory", plan.least_memory);
    out.member("most_sequences", plan.most_sequences);
  });
}

// What it would be for a program that knows ExecuTorch's statistics (extension/llm/runner/stats.h): milliseconds, text that
// is encoded before the first step, and the first tokens that are final.
void write_executorch(JsonWriter &out, const BenchTest &test, std::int64_t committed, std::optional<double> first,
                      double load_seconds) {
  const auto first_step = std::find_if(test.passes.begin(), test.passes.end(),
                                       [](const BenchPass &pass) { return pass.kind != Pass::prefill; });
  const auto milliseconds = [&](const char *name, double seconds) { out.member(name, seconds * 1000); };
  out.name("executorch").object([&] {
    out.member("prompt_tokens", test.prompt_tokens);
    out.member("generated_tokens", committed);
    milliseconds("model_load_start_ms", -load_seconds);  // times count from the beginning of the test
    milliseconds("model_load_end_ms", 0);
    milliseconds("inference_start_ms", 0);
    milliseconds("prompt_eval_end_ms", first_step == test.passes.end() ? test.seconds : first_step->begun);
    member(out, "first_token_ms", first ? std::optional<double>(*first * 1000) : std::nullopt);
    milliseconds("inference_end_ms", test.seconds);
    out.member("SCALING_FACTOR_UNITS_PER_SECOND", 1000);
  });
}

void write_sequence(JsonWriter &out, const BenchSequence &own) {
  out.object([&] {
    member(out, "first_draft_seconds", own.first_draft);
    member(out, "first_block_seconds", own.first_block);
    member(out, "last_block_seconds", own.last_block);
    out.member("committed_tokens", own.committed_tokens);
    out.member("canvas_tokens", own.canvas_tokens);
    out.member("canvases", own.canvases);
    out.member("denoising_steps", own.denoising_steps);
    out.member("forwards", own.forwards);
    out.member("prefills", own.prefills);
    out.member("projections", own.projections);
    out.member("rows", own.rows);
    out.member("done", own.done);
  });
}

void write_test(JsonWriter &out, const BenchTest &test, double load_seconds) {
  const SessionStatistics &a = test.before, &b = test.after;
  out.object([&] {
    out.name("label").raw(test.label);
    out.member("seconds", test.seconds);
    out.member("prompt_tokens", test.prompt_tokens);
    std::int64_t committed = 0, canvas = 0;
    std::optional<double> first;
    for (const auto &[number, own] : test.sequences) {
      committed += own.committed_tokens;
      canvas += own.canvas_tokens;
      if (own.first_block) first = std::min(first.value_or(*own.first_block), *own.first_block);
    }
    out.member("committed_tokens", committed);
    out.member("canvas_tokens", canvas);
    out.name("sequences").list([&] {
      for (const auto &[number, own] : test.sequences) write_sequence(out, own);
    });
    out.member("prefill_passes", b.passes.prefills - a.passes.prefills);
    out.member("denoise_passes", b.passes.denoises - a.passes.denoises);
    out.member("head_passes", b.passes.heads - a.passes.heads);
    out.member("pass_rows", b.passes.rows - a.passes.rows);
    out.member("pass_seconds", b.pass_seconds - a.pass_seconds);
    out.member("prefill_seconds", b.passes.prefill_seconds - a.passes.prefill_seconds);
    out.member("denoise_seconds", b.passes.denoise_seconds - a.passes.denoise_seconds);
    out.member("head_seconds", b.passes.head_seconds - a.passes.head_seconds);
    out.member("bytes_read", b.bytes_read - a.bytes_read);
    out.member("bytes_skipped", b.bytes_skipped - a.bytes_skipped);
    out.member("io_seconds", b.io_seconds - a.io_seconds);
    out.member("io_wait_seconds", b.io_wait_seconds - a.io_wait_seconds);
    out.name("memory").object([&] {
      out.member("peak_resident", test.peak.resident);
      out.member("peak_anonymous", test.peak.anonymous);
      out.member("peak_file", test.peak.file);
      out.member("process_peak", test.process_peak);
      table(out, "over_time", {"seconds", "anonymous", "file"}, test.memory, [&](const MemoryPoint &point) {
        out.value(point.seconds);
        out.value(point.anonymous);
        out.value(point.file);
      });
    });
    out.name("energy").list([&] {
      for (const BenchMeter &meter : test.energy) {
        out.object([&] {
          out.member("meter", std::string_view(meter.name));
          member(out, "joules", meter.joules);
        });
      }
    });
    write_executorch(out, test, committed, first, load_seconds);
    table(out, "passes",
          {"kind", "begun", "headed", "ended", "rows", "segments", "head_rows", "attended", "expert_rows", "waited",
           "bytes_read"},
          test.passes, [&](const BenchPass &pass) {
            out.value(std::string_view(name_of(pass.kind)));
            out.value(pass.begun);
            out.value(pass.headed);
            out.value(pass.ended);
            out.value(pass.rows);
            out.value(pass.segments);
            out.value(pass.head_rows);
            out.value(pass.attended);
            out.value(pass.expert_rows);
            out.value(pass.waited);
            out.value(pass.bytes_read);
          });
    table(out, "spans", {"kind", "name", "begun", "ended"}, test.spans, [&](const BenchSpan &span) {
      out.value(std::string_view(name_of(span.kind)));
      out.value(std::string_view(span.name));
      out.value(span.begun);
      out.value(span.ended);
    });
    out.member("spans_left_out", test.spans_left_out);
  });
}

}  // namespace

std::string machine_json(const MachineFacts &facts) {
  JsonWriter out;
  write_machine(out, facts);
  return out.take();
}

std::string limits_json(const ProcessorProbe &probe, std::optional<double> disk_bytes_per_second) {
  JsonWriter out;
  out.object([&] {
    out.member("threads", probe.threads);
    out.member("int8_operations_per_second", probe.int8_operations);
    out.member("int8_instructions", std::string_view(probe.int8_instructions));
    out.member("float_operations_per_second", probe.float_operations);
    out.member("float_instructions", std::string_view(probe.float_instructions));
    out.member("memory_bytes_per_second", probe.memory_bytes);
    out.member("product_operations_per_second", probe.product_operations);
    out.member("few_row_operations_per_second", probe.few_row_operations);
    out.member("attention_operations_per_second", probe.attention_operations);
    member(out, "disk_bytes_per_second", disk_bytes_per_second);
  });
  return out.take();
}

std::string bench_report(const Recorder &recorder, const std::string &about, double load_seconds) {
  const Session &session = recorder.session();
  JsonWriter out;
  out.object([&] {
    out.member("edgekit_bench", kBenchReportVersion);
    out.member("edgekit", std::string_view(EK_VERSION_STRING));
    out.member("date", std::string_view(date_now()));
    out.name("about").raw(about);
    out.name("machine").raw(machine_json(machine_facts()));
    write_session(out, session.implementation(), session, load_seconds);
    out.name("tests").list([&] {
      for (const BenchTest &test : recorder.tests()) write_test(out, test, load_seconds);
    });
  });
  return out.take();
}

}  // namespace edgekit
