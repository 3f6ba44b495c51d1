#include "session/weight_store.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace edgekit {
namespace {

// Reads of pinned runs under way at a time: runs shorter than a chunk cannot keep the disk busy alone.
constexpr int kReadsAtOnce = 8;

// Counts reads under way, and keeps the first error.
class Reads {
 public:
  void begin() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return under_way_ < kReadsAtOnce; });
    ++under_way_;
  }

  void end(const Error *error) {
    std::lock_guard<std::mutex> lock(mutex_);
    --under_way_;
    if (error != nullptr && !error_) error_.emplace(*error);
    changed_.notify_all();
  }

  bool failed() {
    std::lock_guard<std::mutex> lock(mutex_);
    return error_.has_value();
  }

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return under_way_ == 0; });
  }

  void finish() {
    wait();
    if (error_) throw *error_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int under_way_ = 0;
  std::optional<Error> error_;
};

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

RingStatistics plus(RingStatistics a, const RingStatistics &b) {
  a.bytes_read += b.bytes_read;
  a.runs_read += b.runs_read;
  a.bytes_skipped += b.bytes_skipped;
  a.read_seconds += b.read_seconds;
  a.wait_seconds += b.wait_seconds;
  a.fallbacks += b.fallbacks;
  return a;
}

}  // namespace

// What reads of bring() and their owner share.
struct Arrivals {
  std::mutex mutex;
  std::condition_variable changed;
  int under_way = 0;
  Clock::time_point busy_since;
  RingStatistics statistics;
};

struct WeightStore::Arrival {
  const Run *run = nullptr;
  std::uint8_t *memory = nullptr;
  bool done = false;
  std::optional<Error> error;
};

Loan::Loan(Borrower &borrower, const std::uint8_t *memory, std::uint64_t bytes)
    : borrower_(borrower), memory_(memory), bytes_(bytes) {
  borrower.lend(memory, bytes);
}

Loan::~Loan() { borrower_.take_back(memory_, bytes_); }

WeightStore::WeightStore(FlashFile &file, const ResidencyPlan &plan, RunsOf runs_of, Borrower *borrower)
    : file_(file),
      runs_of_(std::move(runs_of)),
      borrower_(borrower),
      pinned_(file.layout().runs.size(), nullptr),
      arriving_(std::make_shared<Arrivals>()) {
  for (const Run &run : file.layout().runs) kept_.push_back(plan.kept.count(run.name) != 0);
  load_pinned(plan);
  if (plan.ring_bytes == 0) return;
  ring_ = std::make_unique<Ring>(file, static_cast<std::size_t>(plan.ring_bytes));
  lend_ring();
}

void WeightStore::lend_ring() {
  if (borrower_ != nullptr) ring_lent_ = std::make_unique<Loan>(*borrower_, ring_->memory(), ring_->capacity());
}

// Every stretch of it that holds pinned runs.
void WeightStore::lend_pinned() {
  if (borrower_ == nullptr) return;
  const std::uint8_t *start = nullptr, *stop = nullptr;
  const auto lend = [&] {
    if (start == nullptr) return;
    pinned_lent_.push_back(
        std::make_unique<Loan>(*borrower_, start, static_cast<std::uint64_t>(stop - start)));
  };
  std::map<const std::uint8_t *, std::uint64_t> places;
  for (const Run &run : file_.layout().runs) {
    if (pinned(run) != nullptr) places.emplace(pinned(run), run.length);
  }
  for (const auto &[place, bytes] : places) {
    if (place != stop) {
      lend();
      start = place;
    }
    stop = place + bytes;
  }
  lend();
}

void WeightStore::load_pinned(const ResidencyPlan &plan) {
  std::uint64_t total = 0;
  for (const Run &run : file_.layout().runs) {
    if (plan.pinned.count(run.name) != 0) total += run.length;
  }
  if (total == 0) return;
  memory_ = AlignedMemory(static_cast<std::size_t>(total));
  std::uint8_t *next = memory_.data();
  for (const Run &run : file_.layout().runs) {
    if (plan.pinned.count(run.name) == 0) continue;
    pinned_[place(run)] = next;
    next += run.length;
  }
  lend_pinned();
  Reads reads;
  for (const Run &run : file_.layout().runs) {
    if (plan.pinned.count(run.name) == 0) continue;
    if (reads.failed()) break;
    reads.begin();
    try {
      file_.submit(run, pinned_[place(run)], [&reads](const Error *error) { reads.end(error); });
    } catch (...) {
      reads.end(nullptr);
      reads.wait();  // the others write into memory that is about to go
      throw;
    }
  }
  reads.finish();
}

void WeightStore::begin(Pass pass, Pass then) {
  if (!ring_) return;
  if (expected_ == pass && !(changed_ && pass == Pass::prefill)) {
    expected_.reset();
  } else {
    idle();
    schedule(pass);
  }
  schedule(then);
  expected_ = then;
}

void WeightStore::schedule(Pass pass) {
  std::vector<const Run *> streamed;
  for (const Run *run : runs_of_(pass)) {
    if (!stays(*run)) streamed.push_back(run);
  }
  ring_->schedule(streamed);
}

void WeightStore::idle() {
  if (ring_) ring_->cancel();
  while (!arrivals_.empty()) {  // of a pass that failed
    try {
      brought();
    } catch (const Error &) {
      // What that pass failed with is what matters.
    }
  }
  expected_.reset();
  changed_ = false;
}

std::vector<const Run *> WeightStore::next(std::size_t count) const {
  return ring_ ? ring_->next(count) : std::vector<const Run *>();
}

void WeightStore::skip(const std::vector<const Run *> &runs) {
  if (!runs.empty()) ring_->skip(runs);
}

void WeightStore::exchange(const std::vector<Exchange> &wanted) {
  if (wanted.empty()) return;
  idle();
  std::vector<const Run *> coming;
  for (const Exchange &exchange : wanted) coming.push_back(exchange.in);
  const double waited = ring_->statistics().wait_seconds;
  ring_->schedule(coming);
  for (const Exchange &exchange : wanted) {
    try {
      const Use loaded(*this, *exchange.in);
      std::uint8_t *&out = pinned_[place(*exchange.out)];
      std::memcpy(out, loaded.data(), static_cast<std::size_t>(exchange.in->length));
      pinned_[place(*exchange.in)] = std::exchange(out, nullptr);
      bytes_exchanged_ += exchange.in->length;
    } catch (const Error &) {
      // The run has left the schedule; those behind it are still to be taken.
    }
  }
  exchange_wait_seconds_ += ring_->statistics().wait_seconds - waited;
}

WeightStore::~WeightStore() {
  all_arrived();  // they write into memory that is about to go
}

void WeightStore::all_arrived() {
  std::unique_lock<std::mutex> lock(arriving_->mutex);
  arriving_->changed.wait(lock, [this] { return arriving_->under_way == 0; });
}

void WeightStore::bring(const Exchange &wanted) {
  const auto arrival = std::make_shared<Arrival>();
  arrival->run = wanted.in;
  arrival->memory = pinned_[place(*wanted.out)];
  arrivals_.push_back(arrival);
  {
    std::lock_guard<std::mutex> lock(arriving_->mutex);
    if (arriving_->under_way++ == 0) arriving_->busy_since = Clock::now();
  }
  const auto ended = [shared = arriving_, arrival](const Error *error) {
    std::lock_guard<std::mutex> lock(shared->mutex);
    arrival->done = true;
    if (error != nullptr) arrival->error.emplace(*error);
    if (error == nullptr) {
      shared->statistics.bytes_read += arrival->run->length;
      ++shared->statistics.runs_read;
    }
    if (--shared->under_way == 0) shared->statistics.read_seconds += seconds_since(shared->busy_since);
    shared->changed.notify_all();
  };
  try {
    file_.submit(*wanted.in, arrival->memory, ended);
  } catch (...) {
    std::lock_guard<std::mutex> lock(arriving_->mutex);
    --arriving_->under_way;
    arrivals_.pop_back();
    throw;
  }
  pinned_[place(*wanted.out)] = nullptr;
  changed_ = true;
}

std::vector<const Run *> WeightStore::brought() {
  std::vector<const Run *> out;
  std::optional<Error> failed;
  const Clock::time_point started = Clock::now();
  std::unique_lock<std::mutex> lock(arriving_->mutex);
  while (!arrivals_.empty()) {
    const std::shared_ptr<Arrival> first = arrivals_.front();
    if (!first->done && !out.empty() && !failed) break;
    arriving_->changed.wait(lock, [&] { return first->done; });
    arrivals_.pop_front();
    if (first->error) {
      if (!failed) failed = first->error;
      continue;
    }
    pinned_[place(*first->run)] = first->memory;
    bytes_exchanged_ += first->run->length;
    out.push_back(first->run);
  }
  arriving_->statistics.wait_seconds += seconds_since(started);
  if (failed) throw *failed;
  return out;
}

void WeightStore::unpin(const std::vector<const Run *> &runs, std::uint64_t ring_bytes) {
  idle();
  const auto fits = [&](std::uint64_t capacity) {  // whole units of alignment
    return capacity <= ring_bytes && ring_bytes - capacity < kRunAlignment;
  };
  if (ring_bytes != 0 && (!ring_ || !fits(ring_->capacity()))) {
    auto made = std::make_unique<Ring>(file_, static_cast<std::size_t>(ring_bytes));
    if (ring_) earlier_ = plus(earlier_, ring_->statistics());
    ring_lent_.reset();
    ring_ = std::move(made);
    try {
      lend_ring();
    } catch (const Error &) {
      // Nobody has locked it then.
    }
  }
  pinned_lent_.clear();  // what goes may be in the middle
  for (const Run *run : runs) {
    std::uint8_t *data = std::exchange(pinned_[place(*run)], nullptr);
    if (data != nullptr) memory_.discard(data, static_cast<std::size_t>(run->length));
  }
  try {
    lend_pinned();
  } catch (const Error &) {
    // The engine does not have what was to follow.
  }
}

RingStatistics WeightStore::ring_statistics() const {
  RingStatistics found = ring_ ? plus(earlier_, ring_->statistics()) : earlier_;
  {
    std::lock_guard<std::mutex> lock(arriving_->mutex);
    found = plus(found, arriving_->statistics);
  }
  found.wait_seconds -= exchange_wait_seconds_;
  return found;
}

WeightStore::Use::Use(WeightStore &store, const Run &run)
    : store_(store), data_(store.kept(run) ? nullptr : store.pinned(run)), taken_(!store.stays(run)) {
  if (taken_ && !store.ring_) fail(EK_INTERNAL, "run ", run.name, " is neither pinned nor streamed; please report it");
  if (taken_) data_ = store.ring_->take(run);
}

WeightStore::Use::~Use() {
  if (!taken_) return;
  try {
    store_.ring_->release(data_);
  } catch (const Error &) {
    // Only a run that is not taken is refused, and this one is.
  }
}

}  // namespace edgekit
