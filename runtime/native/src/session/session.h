// A model being run: streamed weights, prefix KV, masks and the order of a pass, over an engine that computes.
#ifndef EDGEKIT_SESSION_SESSION_H
#define EDGEKIT_SESSION_SESSION_H

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "flash_file.h"
#include "kernels/head.h"
#include "session/experts.h"
#include "session/weight_store.h"
#include "session/sequence.h"

namespace edgekit {

class Bundle;
class Engine;
class Json;
class SessionObserver;
struct ExpertUse;
struct Model;

// Makes the engine for an opened bundle.
using MakeEngine = std::function<std::unique_ptr<Engine>(Bundle &)>;

constexpr std::int64_t kMostSequences = 65536;

struct SessionOptions {
  std::uint64_t memory_bytes = 0;  // bounds the whole process; 0: everything resident
  std::uint64_t resident_bytes = UINT64_MAX;  // caps the pinned weights further
  std::int64_t positions = 2048;   // the longest prefix that the budget must hold
  std::int64_t canvas = 256;       // the longest segment of a pass
  int threads = 0;                 // 0: every core that the process may use
  std::int64_t sequences = 1;      // open at a time, and segments of a pass, that the budget must hold
  std::int64_t segments = 0;       // of a pass, where it may have more than that
  std::int64_t cached = 0;         // positions of a canvas that passes keep, of models without a prefix, for the budget
  std::int64_t adapter = 0;        // of passes that do not say: all but those of segments; 0: none
};

// Passes that did not fail, what they computed, and where their time went. Of those that denoise the last norm and the
// vocabulary head count apart.
struct PassTotals {
  std::int64_t prefills = 0, denoises = 0, heads = 0, rows = 0;
  double prefill_seconds = 0, denoise_seconds = 0, head_seconds = 0;
};

struct SessionStatistics {
  std::string io_mode;
  std::uint64_t pinned_bytes = 0, ring_bytes = 0, streamed_bytes_per_step = 0, bytes_read = 0, scratch_bytes = 0;
  std::uint64_t bytes_skipped = 0;    // of streamed experts that had no rows
  std::uint64_t bytes_exchanged = 0;  // of streamed experts that were read to stay; among bytes_read
  double io_seconds = 0, io_wait_seconds = 0, pass_seconds = 0;
  PassTotals passes;
  ExpertTotals experts;
};

// Bytes besides weights that a memory budget holds, by cause. `process` is what the process held already.
struct MemoryNeeds {
  std::uint64_t process = 0, prefix = 0, activations = 0, scratch = 0, head = 0, allowance = 0;
  std::uint64_t engine_weights = 0;  // room for weights in memory of the engine's own, which is not the process's
  bool sparse_experts = false;       // a step wants some of a layer's experts alone

  std::uint64_t total() const { return process + prefix + activations + scratch + head + allowance; }
};

struct PlannedUnit {
  std::string name, group;
  std::uint64_t bytes = 0;
  bool pinned = false, kept = false;
};

// What a session takes.
struct SessionPlan {
  MemoryNeeds needs;
  std::uint64_t pinned = 0, ring = 0, streamed = 0, kept = 0;
  std::uint64_t weights = 0;       // all of them
  std::uint64_t least_memory = 0;  // the smallest memory_bytes for these lengths
  std::int64_t most_sequences = 0;  // that memory_bytes has room for; without it, the memory of the machine; 0: unknown
  std::vector<PlannedUnit> units;
};

// Threads of an engine: those that are asked for, or one for each core that the process may keep busy.
int engine_threads(const SessionOptions &options);

// The engine of this library for a bundle: of compiled programs, of packages or, for all others, the native one. One for
// `planning` runs nothing.
MakeEngine core_engine(const SessionOptions &options, bool planning = false);

// What Session would take, from headers alone; `process` stands for what the process holds. Throws Error.
SessionPlan plan_session(const std::string &bundle, const SessionOptions &options, const MakeEngine &make,
                         std::uint64_t process);

// Not for use by several threads at once.
class Session {
 public:
  // `bundle` is the folder; `wrap` is for tests, see FlashFile. Throws Error.
  Session(const std::string &bundle, const SessionOptions &options, const MakeEngine &make,
          const FlashFile::Wrap &wrap = nullptr);
  ~Session();

  // The sequence of its own, which stays.
  Sequence &sequence();
  const Sequence &sequence() const;
  // Others, and copies that share what is kept. Throw Error: EK_BUDGET_EXCEEDED for more than the budget was planned for.
  std::unique_ptr<Sequence> open_sequence();
  std::unique_ptr<Sequence> copy_sequence(const Sequence &original);

  // One pass over the weights for all segments; a sequence keeps rows of one of them at most. Gives the answers of all,
  // empty ones where nothing was asked. `then` is the pass that most likely follows. After a failure every sequence keeps
  // what it kept. Throws Error.
  std::vector<HeadResult> pass(const std::vector<PassSegment> &segments, Pass then = Pass::denoise);

  void idle();

  // Tells `observer`, which may be null, of every pass, unit and read from now on. Nothing is read ahead at that moment, as
  // after idle().
  void observe(SessionObserver *observer) noexcept;

  // From the next pass or idle() on at most so many bytes of weights stay in memory. From any thread.
  void limit_resident(std::uint64_t bytes);

  SessionStatistics statistics() const;
  ExpertUse expert_use(std::size_t layer, std::size_t expert) const;
  const MemoryNeeds &needs() const;
  SessionPlan plan() const;
  int threads() const;
  std::int64_t adapter() const;        // see SessionOptions
  bool opens_here() const;  // see Engine
  std::int64_t most_segments() const;  // of a pass, that a memory budget was planned for; 0: any number
  const Model &model() const;
  const Json &sampler() const;  // the manifest's section

  // For denoising passes of `count` positions behind `committed` ones, which the budget holds for from then on: where it was
  // planned for shorter ones it is planned again, with fewer weights in memory. Between passes. Throws Error:
  // EK_BUDGET_EXCEEDED when it has no room for them, EK_INVALID_ARGUMENT when no session takes so many.
  void make_room(std::int64_t count, std::int64_t committed);

  // Whether `count` ids can stand behind what `sequence` keeps. Throws Error.
  void check_text(const Sequence &sequence, const std::int64_t *ids, std::int64_t count) const;

  // For texts that are encoded in several passes: how many positions go into one, and whether `count` ids behind what
  // `sequence` keeps can be encoded at all. Throws Error.
  std::int64_t prefill_rows() const;
  void check_prefill(const Sequence &sequence, const std::int64_t *ids, std::int64_t count) const;

  void exchange_experts();  // between passes, see Experts

  struct Implementation;
  Implementation &implementation() const { return *implementation_; }

 private:
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_SESSION_H
