// What a session holds.
#ifndef EDGEKIT_SESSION_SESSION_STATE_H
#define EDGEKIT_SESSION_SESSION_STATE_H

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "session/bundle.h"
#include "session/engine.h"
#include "session/experts.h"
#include "session/inputs.h"
#include "session/kept_rows.h"
#include "session/memory.h"
#include "session/observer.h"
#include "session/package_store.h"
#include "session/reservation.h"
#include "session/role_head.h"
#include "session/sequence.h"
#include "session/session.h"
#include "session/table_rows.h"
#include "session/weight_store.h"
#include "session/weights_in_use.h"

namespace edgekit {

// Bound that keeps products of sizes within 64 bits; far beyond any model and machine.
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 22;

struct Session::Implementation {
  Implementation(Session &session, const std::string &folder, const SessionOptions &given, const MakeEngine &make,
                 const FlashFile::Wrap &wrap);

  const Model &model() const { return bundle.model(); }

  // Memory of the process that weights take, at most.
  std::uint64_t weight_bytes() const;

  // The plan, once the engine keeps what it is to: where it has less room than it said, it is another. Throws Error.
  const ResidencyPlan &keep_planned();

  // What a pass uses, in order, experts excluded: their order is decided when they are scheduled.
  std::vector<const Run *> runs_of(Pass pass) const;
  std::vector<const WeightUnit *> units_of(Pass pass) const;

  // The plan with what is in memory now: experts change places.
  ResidencyPlan present() const;

  // Follows limit_resident. No unit is in use.
  void relieve();
  // Has the memory of what `less` does not pin given back, and reads as it says from then on.
  void pin_less(ResidencyPlan less);

  // Whether it is in memory now: of experts the plan knows how many stay, the store which.
  bool pinned(const std::string &unit) const;

  void begin(Pass kind, Pass then);
  void idle();

  // A budget holds for the lengths that the session was opened for; without one, buffers grow up to what the machine has.
  // Throws Error, EK_BUDGET_EXCEEDED or EK_INVALID_ARGUMENT, for segments of up to `count` rows behind `committed` positions.
  void check_lengths(bool text, std::int64_t count, std::int64_t committed, std::int64_t segments) const;
  // See Session.
  void make_room(std::int64_t count, std::int64_t committed);
  // The first for so many open sequences.
  void check_sequences(std::int64_t count) const;
  void check_room(const SessionOptions &longer, const std::string &message) const;

  // Calls `take`, which takes memory for keys and values of a pass, `bytes` in all; where there is none left, once more
  // when what nobody keeps was given back. Throws BudgetError if that is not enough, and what `take` throws.
  void with_kv_room(std::uint64_t bytes, const std::function<void()> &take);
  [[noreturn]] void no_kv_room(std::uint64_t bytes) const;  // throws BudgetError

  Bundle bundle;
  SessionOptions options;  // its lengths grow, see make_room
  const std::unique_ptr<Engine> engine;
  const std::uint64_t machine;  // bytes of memory; 0: nobody knows
  MemoryNeeds needs;
  ResidencyPlan plan;
  Reservation reservation;  // fills the two before it
  // Tells the engine where weights lie.
  class ToEngine final : public Borrower {
   public:
    explicit ToEngine(Engine &engine) : engine_(engine) {}
    void lend(const std::uint8_t *memory, std::uint64_t bytes) override { engine_.lend(memory, bytes); }
    void take_back(const std::uint8_t *memory, std::uint64_t bytes) noexcept override { engine_.take_back(memory, bytes); }

   private:
    Engine &engine_;
  };
  ToEngine to_engine;
  WeightStore weights;
  std::unique_ptr<PackageStore> packages;  // null: all weights are in the flash file
  WeightsInUse in_use;
  Experts experts;
  PassInputs inputs;
  EmbeddingRows embedding;
  FloatBuffer hidden_states, soft_input;  // these and the next in the engine's memory
  std::vector<FloatBuffer> picked;        // rows for the head, by segment
  std::unique_ptr<RoleHead> role_head;    // null: the model has none
  FloatBuffer role_rows;                  // what it looks at, for an engine with memory of its own
  FloatBuffer staged;                     // what is written for an engine's memory of its own
  double pass_seconds = 0;
  PassTotals passes;
  SessionObserver *observer = nullptr;
  std::atomic<std::uint64_t> resident_limit{UINT64_MAX};
  const std::shared_ptr<KvMemory> kept_memory;
  std::int64_t open_sequences = 0;
  std::unique_ptr<Sequence> own;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_SESSION_STATE_H
