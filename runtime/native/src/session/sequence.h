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
#include "session/kept_text.h"

namespace edgekit {

class Session;

// Belongs to its session, which must outlive it. As a Denoiser it runs passes of its own.
class Sequence final : public Denoiser {
 public:
  ~Sequence() override;

  std::int64_t vocabulary() const override;
  std::int64_t prefix_length() const override { return kept_.length(); }
  std::int64_t hidden_size() const override;
  std::int64_t prefix_block() const override;
  bool shift_logits() const override;
  bool role_head() const override;
  std::int64_t most_segments() const override;
  void reset() override;
  void prefill(const std::int64_t *ids, std::int64_t count) override;
  std::vector<HeadResult> pass(const std::vector<AskSegment> &segments) override;
  HeadResult denoise(const std::int64_t *ids, std::int64_t count, const HeadRequest &request,
                     const float *soft) override;
  HeadResult project(const HeadRequest &request) override;

  // Forgets what is kept at and behind position `length`, and what is uncached. Throws Error: EK_INVALID_ARGUMENT,
  // EK_INVALID_STATE where layers with a window no longer have what precedes it.
  void crop(std::int64_t length) override;

  // Of the last pass that gave it hidden states; 0: there was none, or it failed.
  std::int64_t last_rows() const { return last_rows_; }
  std::uint64_t text() const override { return text_.number(prefix_length()); }
  const KeptText &kept_text() const { return text_; }
  std::uint64_t last_pass() const override { return last_rows_ == 0 ? 0 : last_pass_; }

 private:
  friend class Session;
  friend class PassRun;
  friend class SavedSequence;

  // `block`: see Model::prefix_block. `ended` is called when it is destroyed.
  Sequence(Session &session, const std::shared_ptr<KvMemory> &memory, std::int64_t block,
           std::function<void()> ended);
  Sequence(const Sequence &other, std::function<void()> ended);

  Session &session_;
  KeptRows kept_;
  EngineMemory &memory_;
  FloatBuffer last_;            // hidden states of the last denoising pass, behind the last norm, in `memory_`
  std::int64_t last_rows_ = 0;
  std::uint64_t last_pass_ = 0;
  KeptText text_;
  std::function<void()> ended_;
};

// Rows of a pass that see the same.
struct PassSegment {
  Sequence *sequence = nullptr;
  const std::int64_t *ids = nullptr;
  std::int64_t count = 0;  // 0: no rows, the head looks at the hidden states of the sequence's last pass
  const std::int64_t *positions = nullptr;  // [count]; null: those behind what is kept, or from keep_at
  bool causal = false;  // text: a row sees what is not behind it; else the whole segment
  std::int64_t block = 1;  // of text: rows that all see each other, counted from the first of the segment
  const float *soft = nullptr;              // [count, hidden] of a canvas, or null
  std::optional<std::vector<SeenRows>> seen;  // none given: all that the sequence keeps, up to keep_at
  std::int64_t adapter = 0;  // whose matrices are added to products of its rows, from 1; 0: none
  std::optional<std::int64_t> keep_at;  // its keys and values are kept from this position on, in place of those there
  std::int64_t keep_count = 0;              // of its rows, the first, whose are kept; 0: all
  const HeadRequest *request = nullptr;     // null: its rows are not asked for
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_SEQUENCE_H
