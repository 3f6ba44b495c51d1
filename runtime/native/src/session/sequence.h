// A text that a session goes on with: what is kept of it, and the hidden states of its last pass.
#ifndef EDGEKIT_SESSION_SEQUENCE_H
#define EDGEKIT_SESSION_SEQUENCE_H

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "sampling/denoiser.h"
#include "session/inputs.h"
#include "session/kept_rows.h"

namespace edgekit {

class Session;

// Belongs to its session, which must outlive it. As a Denoiser it runs passes of its own.
class Sequence final : public Denoiser {
 public:
  ~Sequence() override;

  std::int64_t vocabulary() const override;
  std::int64_t prefix_length() const override { return kept_.length(); }
  std::int64_t hidden_size() const override;
  void reset() override;
  void prefill(const std::int64_t *ids, std::int64_t count) override;
  HeadResult denoise(const std::int64_t *ids, std::int64_t count, const HeadRequest &request,
                     const float *soft) override;
  HeadResult project(const HeadRequest &request) override;

  // Forgets what is kept at and behind position `length`, and what is uncached. Throws Error: EK_INVALID_ARGUMENT,
  // EK_INVALID_STATE where layers with a window no longer have what precedes it.
  void crop(std::int64_t length);

  // Of the last pass that gave it hidden states; 0: there was none, or it failed.
  std::int64_t last_rows() const { return last_rows_; }
  std::uint64_t text() const override;
  std::uint64_t last_pass() const override { return last_rows_ == 0 ? 0 : last_pass_; }

 private:
  friend class Session;
  friend class PassRun;

  // `ended` is called when it is destroyed.
  Sequence(Session &session, const std::shared_ptr<KvMemory> &memory, std::function<void()> ended);
  Sequence(const Sequence &other, std::function<void()> ended);

  // To be told what is kept from position `at` on; `encoded`: nothing else has gone into it than encoding these ids behind
  // what precedes them. reserve_text() has made room.
  void reserve_text(std::int64_t length) { texts_.reserve(static_cast<std::size_t>(length)); }
  void kept(std::int64_t at, const std::int64_t *ids, std::int64_t count, bool encoded);

  Session &session_;
  KeptRows kept_;
  EngineMemory &memory_;
  FloatBuffer last_;            // hidden states of the last denoising pass, behind the last norm, in `memory_`
  std::int64_t last_rows_ = 0;
  std::uint64_t last_pass_ = 0;
  std::vector<std::uint64_t> texts_;  // the number of the text up to each position, as far as what is kept is text
  std::function<void()> ended_;
};

// Rows that a segment sees before its own: of positions of its sequence, or of an earlier segment of the pass.
struct SeenRows {
  std::int64_t segment = -1;  // -1: kept positions
  std::int64_t first = 0, count = 0;
};

// Rows of a pass that see the same.
struct PassSegment {
  Sequence *sequence = nullptr;
  const std::int64_t *ids = nullptr;
  std::int64_t count = 0;  // 0: no rows, the head looks at the hidden states of the sequence's last pass
  const std::int64_t *positions = nullptr;  // [count]; null: those behind what is kept, or from keep_at
  bool causal = false;  // a row sees what is not behind it; else the whole segment
  const float *soft = nullptr;              // [count, hidden] of a canvas, or null
  std::optional<std::vector<SeenRows>> seen;  // none given: all that the sequence keeps, up to keep_at
  std::optional<std::int64_t> keep_at;  // its keys and values are kept from this position on, in place of those there
  const HeadRequest *request = nullptr;     // null: its rows are not asked for
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_SEQUENCE_H
