#include "bench/recorder.h"

#include <algorithm>
#include <utility>

#include "error.h"
#include "json.h"
#include "session/bundle.h"

namespace edgekit {
namespace {

// A meter of the caller's.
class OwnMeter final : public EnergyMeter {
 public:
  explicit OwnMeter(std::function<double()> joules) : joules_(std::move(joules)) {}
  const char *name() const noexcept override { return "own"; }
  double joules() noexcept override { return joules_(); }

 private:
  const std::function<double()> joules_;
};

std::vector<std::unique_ptr<EnergyMeter>> meters_of(const BenchOptions &options) {
  if (!options.joules) return energy_meters();
  std::vector<std::unique_ptr<EnergyMeter>> out;
  out.push_back(std::make_unique<OwnMeter>(options.joules));
  return out;
}

}  // namespace

std::string checked_object(const std::string &json, const char *what) {
  const char *const advice = "; give a JSON object, such as {\"test\": \"dg128\"}";
  try {
    if (Json::parse(json, what).kind() != Json::Kind::object) fail(EK_INVALID_ARGUMENT, what, " is no JSON object", advice);
  } catch (const Error &error) {
    if (error.status() != EK_MALFORMED_FILE) throw;
    // The reader's advice, behind the last semicolon, is about files.
    const std::string message = error.what();
    fail(EK_INVALID_ARGUMENT, message.substr(0, message.rfind(';')), advice);
  }
  // Between values alone: text has none of its own.
  std::string out = json;
  for (char &each : out) {
    if (each == '\n' || each == '\r') each = ' ';
  }
  return out;
}

Recorder::Recorder(Session &session, BenchOptions options)
    : session_(session), options_(std::move(options)), meters_(meters_of(options_)), log_(options_.interval, meters_) {}

Recorder::~Recorder() { drop(); }

BenchTest &Recorder::running() {
  if (!test_) fail(EK_INVALID_STATE, "no test has begun");
  return *test_;
}

void Recorder::begin(const std::string &label, std::int64_t prompt_tokens) {
  if (test_) fail(EK_INVALID_STATE, "a test has begun already; end it first");
  BenchTest made;
  made.label = checked_object(label, "the label");
  made.prompt_tokens = prompt_tokens;
  made.spans.reserve(options_.spans);
  test_ = std::move(made);
  session_.observe(this);  // ends what was read ahead, which is none of the test's
  try {
    test_->before = session_.statistics();
    waited_ = test_->before.io_wait_seconds;
    bytes_read_ = test_->before.bytes_read;
    log_.begin();
  } catch (...) {
    drop();
    throw;
  }
  begun_ = std::chrono::steady_clock::now();
}

void Recorder::tell(std::int64_t sequence, BenchEvent event, std::int64_t stop) {
  BenchSequence &own = running().sequences[sequence];
  const double now = at(std::chrono::steady_clock::now());
  if (event == BenchEvent::done) {
    own.done = true;
    return;
  }
  own.canvas_tokens = std::max(own.canvas_tokens, stop);  // some blocks are committed without a draft
  if (event == BenchEvent::draft) {
    if (!own.first_draft) own.first_draft = now;
    return;
  }
  if (!own.first_block) own.first_block = now;
  own.last_block = now;
}

void Recorder::count(std::int64_t sequence, const BenchSequence &counted) {
  BenchSequence &own = running().sequences[sequence];
  own.committed_tokens = counted.committed_tokens;
  own.canvases = counted.canvases;
  own.denoising_steps = counted.denoising_steps;
  own.forwards = counted.forwards;
  own.prefills = counted.prefills;
  own.projections = counted.projections;
  own.rows = counted.rows;
}

void Recorder::end() {
  BenchTest &own = running();
  own.seconds = at(std::chrono::steady_clock::now());
  own.after = session_.statistics();
  log_.end();
  session_.observe(nullptr);
  own.memory = log_.points();
  own.peak = log_.peak();
  own.process_peak = std::max(process_peak_bytes(), own.peak.resident);  // the system counts the former less often
  for (std::size_t i = 0; i < meters_.size(); ++i) {
    const double joules = log_.joules()[i];
    own.energy.push_back({meters_[i]->name(), joules < 0 ? std::nullopt : std::optional<double>(joules)});
  }
  tests_.push_back(std::move(own));
  test_.reset();
}

void Recorder::drop() noexcept {
  if (!test_) return;
  log_.end();
  session_.observe(nullptr);
  test_.reset();
}

void Recorder::passed(const PassTimes &pass) noexcept {
  try {
    const SessionStatistics now = session_.statistics();
    const double waited = now.io_wait_seconds - std::exchange(waited_, now.io_wait_seconds);
    const std::uint64_t read = now.bytes_read - std::exchange(bytes_read_, now.bytes_read);
    test_->passes.push_back({pass.kind, at(pass.begun), at(pass.headed), at(pass.ended), pass.rows, pass.segments,
                             pass.head_rows, pass.attended, pass.expert_rows, waited, read});
  } catch (...) {
    // No memory is left for it: the sums of the session hold all the same.
  }
}

void Recorder::used(const UnitTimes &unit) noexcept {
  if (unit.waits) span(BenchSpan::wait, unit.unit->name, unit.asked, unit.had);
  span(BenchSpan::use, unit.unit->name, unit.had, unit.done);
}

void Recorder::read(const Run &run, Moment begun, Moment ended) noexcept { span(BenchSpan::read, run.name, begun, ended); }

void Recorder::span(BenchSpan::Kind kind, const std::string &name, Moment begun, Moment ended) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(spans_);
    if (!test_) return;
    if (test_->spans.size() < options_.spans) {
      test_->spans.push_back({kind, name, at(begun), at(ended)});
    } else {
      ++test_->spans_left_out;
    }
  } catch (...) {
    // As above.
  }
}

}  // namespace edgekit
