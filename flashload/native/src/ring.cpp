#include "ring.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>

namespace edgekit {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

enum class State {
  queued,  // no memory yet
  reading,
  loaded,
  failed,  // memory given up, the error waits for take()
  taken,
  gone,  // released, skipped or cancelled
};

struct Entry {
  explicit Entry(const Run *scheduled) : run(scheduled) {}

  // A skipped or cancelled read may still be writing: its memory is not free before its threads are done.
  bool holds_memory() const noexcept { return in_flight || state == State::loaded || state == State::taken; }

  const Run *const run;
  State state = State::queued;
  std::uint64_t start = 0;
  bool in_flight = false;
  bool skipped = false;
  std::shared_ptr<PendingRead> pending;
  std::optional<Error> error;
};

using EntryPointer = std::shared_ptr<Entry>;

std::atomic<bool> poisoned{false};

}  // namespace

struct Ring::Implementation {
  Implementation(FlashFile &opened, std::size_t bytes)
      : file(opened), capacity(bytes - bytes % kRunAlignment), fallbacks_before(opened.statistics().fallbacks) {
    if (capacity == 0) {
      fail(EK_INVALID_ARGUMENT, "a ring of ", bytes, " bytes is too small; it needs at least ", kRunAlignment);
    }
    arena = AlignedMemory(capacity);
  }

  // --- filling (the lock is held) ---

  // Starts reads as long as there is room.
  void pump() {
    while (!queue.empty()) {
      const EntryPointer entry = queue.front();
      const std::optional<std::uint64_t> place = find_place(entry->run->length);
      if (!place) return;
      live.emplace(*place, entry);  // what may throw comes before what would have to be undone
      queue.pop_front();
      entry->start = *place;
      entry->state = State::reading;
      head = *place + entry->run->length;
      try {
        // The callback needs the lock that is held here, so the read cannot have ended yet when submit returns.
        entry->pending = file.submit(*entry->run, arena.data() + *place,
                                     [this, entry](const Error *error) { read_ended(entry, error); });
        entry->in_flight = true;
        if (reading++ == 0) busy_since = Clock::now();
      } catch (const Error &error) {
        entry->state = State::failed;
        entry->error = error;
        trim();
      } catch (const std::bad_alloc &) {
        entry->state = State::failed;
        entry->error.emplace(EK_OUT_OF_MEMORY, "no memory is left to read run " + entry->run->name);
        trim();
      }
    }
  }

  void read_ended(const EntryPointer &entry, const Error *error) {
    std::lock_guard<std::mutex> lock(mutex);
    entry->in_flight = false;
    entry->pending.reset();
    if (--reading == 0) statistics.read_seconds += seconds_since(busy_since);
    if (error == nullptr) {
      statistics.bytes_read += entry->run->length;
      ++statistics.runs_read;
    } else if (entry->skipped) {
      statistics.bytes_skipped += entry->run->length;
    }
    if (entry->state == State::reading) {
      entry->state = error == nullptr ? State::loaded : State::failed;
      if (error != nullptr) entry->error = *error;
    }
    trim();
    pump();
    // Under the lock: once it is free the ring may be destroyed.
    changed.notify_all();
  }

  // Start of a free span of that length: the first one at or behind the head or, when there is none, from 0 on. A run
  // that is held long, as a layer's dense part is while its experts pass, is jumped over.
  std::optional<std::uint64_t> find_place(std::uint64_t length) const {
    const std::optional<std::uint64_t> ahead = free_from(head, length);
    return ahead ? ahead : free_from(0, length);
  }

  std::optional<std::uint64_t> free_from(std::uint64_t from, std::uint64_t length) const {
    std::uint64_t start = from;
    for (const auto &[place, entry] : live) {
      if (place >= start && place - start >= length) return start;
      start = std::max(start, place + entry->run->length);
    }
    if (capacity - start >= length) return start;
    return std::nullopt;
  }

  // Forgets memory that nobody holds.
  void trim() {
    for (auto span = live.begin(); span != live.end();) {
      span = span->second->holds_memory() ? std::next(span) : live.erase(span);
    }
    if (live.empty()) head = 0;
  }

  // --- consumer (the lock is held) ---

  // The read of a run that is no longer wanted ends as soon as it can.
  static void drop(Entry &entry) {
    entry.state = State::gone;
    if (entry.pending) entry.pending->cancel();
  }

  bool only_taken_left() const {
    return std::all_of(live.begin(), live.end(),
                       [](const auto &span) { return span.second->state == State::taken; });
  }

  [[noreturn]] void fail_full(const Run &run) const {
    std::string held;
    for (const auto &[place, entry] : live) {
      if (entry->state == State::taken) held += (held.empty() ? "" : ", ") + entry->run->name;
    }
    fail(EK_INTERNAL, "run ", run.name, " has no room while these are taken: ", held,
         "; release them first or give the ring more memory");
  }

  FlashFile &file;
  const std::uint64_t capacity;
  const std::uint64_t fallbacks_before;
  AlignedMemory arena;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<EntryPointer> order;  // scheduled and not taken, in order
  std::deque<EntryPointer> queue;  // the part of it that has no memory yet
  std::map<std::uint64_t, EntryPointer> live;  // what has memory, by where
  std::uint64_t head = 0;          // end of the memory that was given out last
  std::uint64_t reading = 0;
  Clock::time_point busy_since;
  RingStatistics statistics;
};

Ring::Ring(FlashFile &file, std::size_t bytes) : implementation_(std::make_unique<Implementation>(file, bytes)) {}

Ring::~Ring() { cancel(); }

std::size_t Ring::capacity() const noexcept { return static_cast<std::size_t>(implementation_->capacity); }

const std::uint8_t *Ring::memory() const noexcept { return implementation_->arena.data(); }

RingStatistics Ring::statistics() const {
  const Implementation &ring = *implementation_;
  const std::uint64_t fallbacks = ring.file.statistics().fallbacks - ring.fallbacks_before;
  std::lock_guard<std::mutex> lock(ring.mutex);
  RingStatistics now = ring.statistics;
  if (ring.reading != 0) now.read_seconds += seconds_since(ring.busy_since);
  now.fallbacks = fallbacks;
  return now;
}

void Ring::schedule(const std::vector<const Run *> &runs) {
  Implementation &ring = *implementation_;
  std::vector<EntryPointer> entries;
  entries.reserve(runs.size());
  for (const Run *run : runs) {
    entries.push_back(std::make_shared<Entry>(&ring.file.layout().run(run->name)));
    if (run->length > ring.capacity) {
      fail(EK_BUDGET_EXCEEDED, "run ", run->name, " has ", run->length, " bytes, the ring ", ring.capacity,
           "; give the ring at least ", run->length, " bytes");
    }
  }
  std::lock_guard<std::mutex> lock(ring.mutex);
  const std::size_t before = ring.order.size();
  try {
    ring.order.insert(ring.order.end(), entries.begin(), entries.end());
    ring.queue.insert(ring.queue.end(), entries.begin(), entries.end());
  } catch (...) {
    ring.order.resize(before);
    throw;
  }
  ring.pump();
}

const std::uint8_t *Ring::take(const Run &run) {
  Implementation &ring = *implementation_;
  std::unique_lock<std::mutex> lock(ring.mutex);
  if (ring.order.empty()) {
    fail(EK_INTERNAL, "run ", run.name, " was taken but nothing is scheduled; call schedule() first");
  }
  const EntryPointer entry = ring.order.front();
  if (entry->run->name != run.name) {
    fail(EK_INTERNAL, "run ", run.name, " was taken but ", entry->run->name, " is next in the schedule");
  }
  if (entry->state == State::queued || entry->state == State::reading) {
    const Clock::time_point started = Clock::now();
    bool full = false;
    while (entry->state == State::queued || entry->state == State::reading) {
      full = entry->state == State::queued && ring.only_taken_left();
      if (full) break;
      ring.changed.wait(lock);
    }
    ring.statistics.wait_seconds += seconds_since(started);
    if (full) ring.fail_full(run);
  }
  if (entry->state == State::gone) {
    fail(EK_STOPPED, "run ", run.name, " was dropped from the schedule while it was waited for");
  }
  ring.order.pop_front();
  if (entry->state == State::failed) {
    entry->state = State::gone;
    throw *entry->error;
  }
  entry->state = State::taken;
  return ring.arena.data() + entry->start;
}

bool Ring::ready(const Run &run) const {
  const Implementation &ring = *implementation_;
  std::lock_guard<std::mutex> lock(ring.mutex);
  if (ring.order.empty() || ring.order.front()->run->name != run.name) return false;
  return ring.order.front()->state == State::loaded || ring.order.front()->state == State::failed;
}

std::vector<const Run *> Ring::next(std::size_t count) const {
  const Implementation &ring = *implementation_;
  std::vector<const Run *> runs;
  std::lock_guard<std::mutex> lock(ring.mutex);
  for (std::size_t i = 0; i < std::min(count, ring.order.size()); ++i) runs.push_back(ring.order[i]->run);
  return runs;
}

void Ring::skip(const std::vector<const Run *> &runs) {
  Implementation &ring = *implementation_;
  std::lock_guard<std::mutex> lock(ring.mutex);
  std::vector<EntryPointer> skipped;
  for (auto entry = ring.order.begin(); entry != ring.order.end() && skipped.size() < runs.size(); ++entry) {
    if ((*entry)->run->name == runs[skipped.size()]->name) skipped.push_back(*entry);
  }
  if (skipped.size() < runs.size()) {
    fail(EK_INTERNAL, "run ", runs[skipped.size()]->name, " was skipped but is not scheduled after those before it");
  }
  // They are near the front of either queue: few others move.
  const auto remove = [](std::deque<EntryPointer> &from, const EntryPointer &entry) {
    from.erase(std::find(from.begin(), from.end(), entry));
  };
  for (const EntryPointer &entry : skipped) {
    remove(ring.order, entry);
    if (entry->state == State::queued) {
      remove(ring.queue, entry);
      ring.statistics.bytes_skipped += entry->run->length;
    }
    entry->skipped = entry->in_flight;
    Implementation::drop(*entry);
  }
  ring.trim();
  ring.pump();
}

void Ring::release(const std::uint8_t *data) {
  Implementation &ring = *implementation_;
  std::lock_guard<std::mutex> lock(ring.mutex);
  const auto span = std::find_if(ring.live.begin(), ring.live.end(),
                                 [&](const auto &each) { return ring.arena.data() + each.first == data; });
  if (span != ring.live.end() && span->second->state == State::taken) {
    Entry &entry = *span->second;
    entry.state = State::gone;
    if (poisoned) std::memset(ring.arena.data() + entry.start, 0xFF, static_cast<std::size_t>(entry.run->length));
    ring.trim();  // `entry` is destroyed by this
    ring.pump();
    ring.changed.notify_all();
    return;
  }
  fail(EK_INTERNAL, "memory was released that is not that of a taken run; release every take() once");
}

void Ring::cancel() {
  Implementation &ring = *implementation_;
  std::unique_lock<std::mutex> lock(ring.mutex);
  std::deque<EntryPointer> dropped;
  dropped.swap(ring.order);
  ring.queue.clear();
  for (const EntryPointer &entry : dropped) Implementation::drop(*entry);
  ring.trim();
  ring.changed.notify_all();
  ring.changed.wait(lock, [&] { return ring.reading == 0; });
}

void poison_released_runs(bool on) { poisoned = on; }

std::string Ring::inconsistency() const {
  const Implementation &ring = *implementation_;
  std::lock_guard<std::mutex> lock(ring.mutex);
  std::ostringstream found;
  std::uint64_t in_flight = 0, last_end = 0;
  for (const auto &[begin, entry] : ring.live) {
    const std::uint64_t end = begin + entry->run->length;
    if (end > ring.capacity || begin % kRunAlignment != 0) {
      found << "span " << begin << ".." << end << " is outside the arena or unaligned; ";
    }
    if (entry->start != begin) found << "run " << entry->run->name << " is noted at another place; ";
    if (begin < last_end) found << "spans overlap at " << begin << "; ";
    if (!entry->holds_memory()) found << "run " << entry->run->name << " keeps memory that it does not hold; ";
    last_end = end;
    in_flight += entry->in_flight;
  }
  if (in_flight != ring.reading) found << ring.reading << " reads are counted, not those in flight; ";
  std::deque<EntryPointer> waiting;
  for (const EntryPointer &entry : ring.order) {
    const bool placed = entry->state == State::reading || entry->state == State::loaded;
    if (entry->state == State::queued) waiting.push_back(entry);
    const auto span = ring.live.find(entry->start);
    const bool has_memory = span != ring.live.end() && span->second == entry;
    if (placed != has_memory && entry->state != State::failed) {
      found << "run " << entry->run->name << " has the wrong memory; ";
    }
    if (entry->error.has_value() != (entry->state == State::failed)) {
      found << "run " << entry->run->name << " has the wrong error; ";
    }
  }
  if (waiting != ring.queue) found << "the queue is not the waiting part of the schedule; ";
  return found.str();
}

}  // namespace edgekit
