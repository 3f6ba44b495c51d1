// What a recorder has recorded, as JSON: the same on every machine, whatever language asked for it.
#ifndef EDGEKIT_BENCH_REPORT_H
#define EDGEKIT_BENCH_REPORT_H

#include <optional>
#include <string>

#include "bench/machine.h"
#include "bench/probe.h"
#include "bench/recorder.h"

namespace edgekit {

constexpr int kBenchReportVersion = 1;

// docs/bench.md describes it. `about` is a JSON object of the caller's.
std::string bench_report(const Recorder &recorder, const std::string &about, double load_seconds);

// The object "machine" of a report.
std::string machine_json(const MachineFacts &facts);

// The object "limits" of a report's "about": what processor, memory and disk were measured to do.
std::string limits_json(const ProcessorProbe &probe, std::optional<double> disk_bytes_per_second);

}  // namespace edgekit

#endif  // EDGEKIT_BENCH_REPORT_H
