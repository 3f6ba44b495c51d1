// What a session does while it is measured, test by test.
#ifndef EDGEKIT_BENCH_RECORDER_H
#define EDGEKIT_BENCH_RECORDER_H

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bench/energy.h"
#include "bench/memory_log.h"
#include "session/observer.h"
#include "session/session.h"

namespace edgekit {

// Seconds are counted from the beginning of a test.
struct BenchPass {
  Pass kind = Pass::denoise;
  double begun = 0, headed = 0, ended = 0;  // see PassTimes
  std::int64_t rows = 0, segments = 0, head_rows = 0, attended = 0, expert_rows = 0;
  double waited = 0;             // for weights
  std::uint64_t bytes_read = 0;  // since the pass before
};

struct BenchSpan {
  enum Kind { read, wait, use } kind = read;
  std::string name;  // of the unit or run
  double begun = 0, ended = 0;
};

// An object for the report, without line breaks. Throws Error (EK_INVALID_ARGUMENT) for what is none.
std::string checked_object(const std::string &json, const char *what);

// A generation, as its events tell.
struct BenchSequence {
  std::optional<double> first_draft, first_block, last_block;
  std::int64_t committed_tokens = 0, canvas_tokens = 0, canvases = 0, denoising_steps = 0, forwards = 0, prefills = 0,
               projections = 0, rows = 0;
  bool done = false;
};

struct BenchMeter {
  std::string name;
  std::optional<double> joules;
};

struct BenchTest {
  std::string label;  // JSON
  std::int64_t prompt_tokens = 0;
  double seconds = 0;
  std::vector<BenchPass> passes;
  std::vector<BenchSpan> spans;
  std::int64_t spans_left_out = 0;
  std::map<std::int64_t, BenchSequence> sequences;
  SessionStatistics before, after;
  std::vector<MemoryPoint> memory;
  MemoryPeak peak;
  std::uint64_t process_peak = 0;
  std::vector<BenchMeter> energy;
};

struct BenchOptions {
  std::chrono::milliseconds interval{20};  // between looks at memory and meters
  std::size_t spans = 0;                   // of a test that are kept, at most
  // Joules since any moment from a meter of the caller's, in place of the system's; negative: not known. Empty: there is none.
  std::function<double()> joules;
};

enum class BenchEvent { draft, committed, done };

// Records one test at a time, between begin() and end(). It must end before its session does.
class Recorder final : private SessionObserver {
 public:
  Recorder(Session &session, BenchOptions options);
  ~Recorder() override;

  // Throws Error: EK_INVALID_ARGUMENT for a label that is no JSON object, EK_INVALID_STATE where a test has begun.
  void begin(const std::string &label, std::int64_t prompt_tokens);
  // Something that generation number `sequence` of the test told now; a draft is of the answer's positions before `stop`.
  void tell(std::int64_t sequence, BenchEvent event, std::int64_t stop);
  // What is counted of it in the end.
  void count(std::int64_t sequence, const BenchSequence &counted);
  // Throws Error (EK_INVALID_STATE) where none has begun.
  void end();
  // Forgets the test that has begun, if there is one.
  void drop() noexcept;

  const std::vector<BenchTest> &tests() const noexcept { return tests_; }
  Session &session() const noexcept { return session_; }

 private:
  void passed(const PassTimes &pass) noexcept override;
  void used(const UnitTimes &unit) noexcept override;
  void read(const Run &run, Moment begun, Moment ended) noexcept override;

  double at(Moment moment) const { return seconds_between(begun_, moment); }
  void span(BenchSpan::Kind kind, const std::string &name, Moment begun, Moment ended) noexcept;
  BenchTest &running();

  Session &session_;
  const BenchOptions options_;
  std::vector<std::unique_ptr<EnergyMeter>> meters_;
  MemoryLog log_;
  std::optional<BenchTest> test_;
  std::vector<BenchTest> tests_;
  Moment begun_;
  double waited_ = 0;
  std::uint64_t bytes_read_ = 0;
  std::mutex spans_;  // reads come from other threads
};

}  // namespace edgekit

#endif  // EDGEKIT_BENCH_RECORDER_H
