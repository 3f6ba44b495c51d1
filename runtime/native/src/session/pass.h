// One pass over the weights for several segments.
#ifndef EDGEKIT_SESSION_PASS_H
#define EDGEKIT_SESSION_PASS_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "session/session_state.h"

namespace edgekit {

// Throws Error (EK_INVALID_ARGUMENT) unless all are of the vocabulary.
void check_ids(const Model &model, const std::int64_t *ids, std::int64_t count);

// Whether `count` ids can stand behind what `sequence` keeps. Throws Error.
void check_text(const Session::Implementation &session, const Sequence &sequence, const std::int64_t *ids,
                std::int64_t count);

// Whether they can be encoded there, in this session. Throws Error.
void check_prefill(const Session::Implementation &session, const Sequence &sequence, const std::int64_t *ids,
                   std::int64_t count);

class PassRun {
 public:
  // Throws Error for segments that do not fit the model, the session or each other; nothing has happened then.
  PassRun(Session::Implementation &session, const std::vector<PassSegment> &segments);

  // Throws Error; every sequence keeps what it kept then.
  std::vector<HeadResult> run(Pass then);

 private:
  // A segment, settled.
  struct Rows {
    const PassSegment *given = nullptr;
    Sequence *sequence = nullptr;
    std::int64_t first = 0;  // row of the pass
    std::vector<std::int64_t> positions;
    std::vector<SeenRows> seen;
    std::int64_t length = 0;  // that the sequence keeps
    std::int64_t asked = 0;   // rows that a request chooses from: its own, or those of the sequence's last pass
    bool looked_at = false;   // by a later segment
    bool last = false;        // its hidden states are what the sequence is asked for after the pass
  };

  // Where the keys and values of a segment's rows are for later segments and for what is kept.
  struct Own {
    FloatBuffer memory;  // of those that are not kept, the engine's
    KeyPiece rows;
  };

  void settle(std::size_t index);
  void settle_seen(std::size_t index);
  void settle_positions(Rows &own, std::int64_t from) const;
  std::uint64_t unkept_bytes() const;
  void check_request(const HeadRequest &request, std::int64_t positions) const;
  bool is_text(const PassSegment &given) const;
  Pass kind() const;
  std::uint64_t added_bytes() const;
  void attempt(Pass then);
  void count(Moment begun, Moment ended);
  void compute();
  void embed();
  void self_condition();
  void run_layers();
  void experts(std::size_t chunk, const std::vector<std::int64_t> &rows,
               const std::function<void(const std::vector<LoadedExpertUnit> &)> &use);
  void place_own(std::size_t segment, std::size_t layer, std::size_t place);
  LayerInputs layer_inputs(std::size_t segment, std::size_t layer, std::size_t place);
  void finish();
  void heads();
  void keep();
  std::unique_ptr<HeadScores> head(std::size_t segment);
  std::vector<float> roles(const float *x, std::int64_t rows);

  Session::Implementation &session_;
  const Model &model_;
  EngineMemory &memory_;
  std::vector<Rows> segments_;
  std::int64_t rows_ = 0;
  std::int64_t expert_rows_ = 0;
  Moment headed_;       // where the last norm and the vocabulary head began
  float *x_ = nullptr;  // [rows, hidden] in `memory_`
  std::vector<std::vector<Own>> own_;  // by segment and layer of a call
  KvCharge unkept_;                    // for what later segments look at and nobody keeps
  std::vector<HeadResult> results_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_PASS_H
