// A denoising procedure as a state machine. It holds tokens, options, random numbers and counters, and does nothing by
// itself: it asks, whoever drives it does the pass, and answers. So one procedure runs under callbacks and iterators of
// any language without threads, and is a value: it can be copied, saved, and stopped anywhere.
#ifndef EDGEKIT_SAMPLING_SAMPLER_H
#define EDGEKIT_SAMPLING_SAMPLER_H

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sampling/ask.h"
#include "sampling/cached_canvas.h"
#include "sampling/drafts.h"
#include "sampling/draws.h"
#include "sampling/options.h"
#include "sampling/saved_state.h"
#include "sampling/statistics.h"
#include "sampling/text_number.h"

namespace edgekit {

// What a sampler knows of the model that answers.
struct SamplerModel {
  std::int64_t vocabulary = 0;
  std::int64_t hidden_size = 0;  // of a soft embedding
  bool projects = true;          // keeps the hidden states of a pass; else the sampler asks for the pass again
  std::int64_t prefix_block = 1;  // rows of encoded text that see each other; 1: causal
  bool shift_logits = false;      // the scores at position j predict token j + 1
  bool role_head = false;         // it tells the logical roles of positions
  std::int64_t segments = 0;      // of a pass, at most; 0: any number
  // Where the generation begins, for an option continue_prefix.
  std::int64_t prefix_length = 0;
  std::vector<std::vector<std::int64_t>> encoded;  // what the prefix is, in pieces; needed to save and restore only
  std::vector<std::int64_t> uncached;  // text behind the prefix that is final and not encoded
};

class Sampler {
 public:
  virtual ~Sampler() = default;

  // Gives it its prompt, before anything else. Throws Error (EK_INVALID_ARGUMENT).
  virtual void begin(const std::vector<std::int64_t> &prompt, std::uint64_t seed) = 0;

  const SamplerModel &model() const { return model_; }

  // What the generation takes, at most.
  const Lengths &lengths() const { return lengths_; }

  // What to do now. It stays until next() returns.
  const Ask &ask() const { return ask_; }
  // Which pass answered the last denoise, see Denoiser::last_pass(): a project is of the same.
  std::uint64_t pass() const { return pass_; }
  void set_pass(std::uint64_t pass) { pass_ = pass; }
  const Stats &stats() const { return stats_; }

  // Goes on: what was asked has been done, and `answer` is that of a denoise or project, `answers` those of a pass. After
  // done nothing follows. Throws Error and asks the same again: EK_INTERNAL for an answer that lacks something,
  // EK_NOT_FINITE.
  void next(HeadResult answer = {});
  void next(std::vector<HeadResult> answers);

  // The generation ends where it is, and the counters say so, unless next() follows.
  void stop() { stats_.finish_reason = FinishReason::cancelled; }

  // Ends the generation within so many further passes, 1 or more: the last of them settles all that is open. A pass that
  // was asked for before is not counted. Throws Error: EK_INVALID_ARGUMENT, EK_INVALID_STATE for a procedure that cannot.
  void hurry(std::int64_t passes);

  virtual std::unique_ptr<Sampler> copy() const = 0;

  // Draws from another seed from here on; what was drawn stays. A step whose pass has no answer yet is begun again. Throws
  // Error (EK_INVALID_STATE) within such a step while its text is encoded again.
  void reseed(std::uint64_t seed);

  // Asks for all text to be encoded again before it goes on, for a model that does not hold it, such as that of a copy.
  // Throws Error (EK_INVALID_STATE) where the ids of the text before the generation are not known.
  void restore();

  // The state as bytes, see load_sampler(). A step under way is begun again, what was told is not told again.
  // `bundle` names what the state belongs to. Throws Error (EK_INVALID_STATE) as restore().
  std::string save(const std::string &bundle) const;

 protected:
  explicit Sampler(SamplerModel model);
  Sampler(const Sampler &) = default;

  // The family's, as in a manifest.
  virtual const char *name() const = 0;
  virtual std::string options_text() const = 0;

  // Whether it looks at is_last_step().
  virtual bool hurries() const { return false; }

  // Replaces ask(), which was done. The answer is complete and finite.
  virtual void proceed(HeadResult &&answer) = 0;
  // The same of a pass, for procedures that ask for one: as many answers as were asked for.
  virtual void proceed_pass(std::vector<HeadResult> &&answers);

  // Goes on between two denoising steps: asks for the pass of the next, or tells what is committed.
  virtual void go_on() = 0;
  // What go_on() needs to know.
  virtual void write(StateWriter &state) const = 0;
  // Throws Error (EK_MALFORMED_FILE) for what no sampler has written.
  virtual void read(StateReader &state) = 0;
  // Asks to encode final text; for families that have a causal prefix. Throws Error (EK_MALFORMED_FILE).
  virtual void ask_waiting();

  // Whether the next step, of so many passes, is the last that hurry() allows; and whether no pass is left.
  bool is_last_step(std::int64_t passes = 1) const {
    return last_forward_ != 0 && stats_.forwards + 2 * passes > last_forward_;
  }
  bool is_late() const { return last_forward_ != 0 && stats_.forwards >= last_forward_; }

  Stats &counters() { return stats_; }
  Draws &draws() { return draws_; }
  void seed(std::uint64_t seed) { draws_ = Draws(seed); }
  void set_lengths(const Lengths &lengths) { lengths_ = lengths; }

  // Has a pass compute so many steps, where they are what the step before them predicts. Before anything is asked for. Gives
  // their number: fewer, where the model takes fewer segments.
  std::int64_t draft_ahead(std::int64_t steps);

  // go_on() begins: a state that is saved before it is called again goes on here.
  void mark();

  void ask_forget();
  void ask_encode(std::vector<std::int64_t> ids);
  void ask_denoise(std::vector<std::int64_t> ids, HeadRequest request, std::vector<float> soft = {});
  // What a segment keeps is text behind all that is encoded.
  void ask_pass(std::vector<AskSegment> segments);
  // For families without a prefix, whose passes may keep rows of a canvas; requests count its rows from its first.
  bool holds_cache() const { return cached_.passes() > 0; }
  // Whether so many passes, or passes of a canvas of another length, have computed what is kept.
  bool is_stale(std::int64_t passes, std::int64_t length) const {
    return holds_cache() && (cached_.passes() >= passes || cached_.length() != length);
  }
  // A pass of the rows of a canvas that no pass has kept. It keeps those that stay as they are: of the prompt, and of tokens of the
  // answer that are not `open`. `shifted`: scores at a row predict the token behind it, which must be there too.
  void ask_delayed(const std::vector<std::int64_t> &canvas, std::int64_t prompt, const std::vector<std::uint8_t> &open,
                   bool shifted, HeadRequest request);
  // A pass of some rows of a canvas, which see kept ones of the positions before and behind them. Rows of the request count
  // from the canvas' first.
  void ask_part(const std::vector<std::int64_t> &canvas, std::int64_t start, std::int64_t stop, HeadRequest request);
  // A step on block [start, stop) of a canvas: of all of it, which is kept where something is to be, or of what `cache`
  // ("none", "prefix" or "dual") says that its later steps compute.
  void ask_block(const std::string &cache, bool whole, const std::vector<std::int64_t> &canvas, std::int64_t start,
                 std::int64_t stop, HeadRequest request);
  void ask_crop(std::int64_t length);
  // Positions that are encoded.
  std::int64_t encoded_length() const { return prefix_length_; }
  // Another request on the last pass, which was one of `ids` without a soft embedding.
  void ask_again(const std::vector<std::int64_t> &ids, HeadRequest request);
  // `kept` is text that is final and not encoded; none: nothing changes.
  void tell_draft(std::int64_t canvas_index, std::int64_t step, std::int64_t start, std::vector<std::int64_t> ids,
                  std::vector<std::uint8_t> accepted, std::vector<std::int64_t> kept = {});
  // `padding`: of ids, the last ones that are no text.
  void tell_committed(std::int64_t canvas_index, std::vector<std::int64_t> ids, std::vector<std::int64_t> kept = {},
                      std::int64_t padding = 0);
  void tell_done();

  // Rows whose full scores take no more than this, one at least.
  std::int64_t rows_within(std::int64_t bytes) const;

  // Of a family with a prefix: text that is to be encoded as a generation begins, and how long all text is then.
  struct Beginning {
    std::vector<std::int64_t> waiting;
    std::int64_t length = 0;
  };
  // The prompt, behind the text that is there where `goes_on`, the option continue_prefix.
  Beginning beginning(const std::vector<std::int64_t> &prompt, bool goes_on) const;

  // Throws Error (EK_INVALID_PROMPT) unless every id is a row of the vocabulary.
  void check_prompt(const std::vector<std::int64_t> &prompt) const;

 private:
  friend std::unique_ptr<Sampler> load_sampler(std::string_view state, SamplerModel model, const std::string &bundle);

  bool goes_on();
  bool tells() const { return ask_.kind == AskKind::draft || ask_.kind == AskKind::committed; }
  void proceed_drafted();
  void ask_drafted(AskSegment step);
  void check(const HeadResult &answer, const HeadRequest &request, std::int64_t rows) const;
  bool is_text(const AskSegment &segment) const;
  void know(const std::vector<std::int64_t> &ids);
  void crop_text(std::int64_t length);
  void ask_cached(CachedCanvas next, HeadRequest request);
  void ask_cache(AskSegment segment);
  void behind_cached(std::int64_t pass);
  void check_text_known() const;
  void go_on_restoring();
  void load(StateReader &state);
  void encoded(const std::vector<std::int64_t> &ids);
  void ask_behind_text();

  SamplerModel model_;
  Lengths lengths_;
  Ask ask_;
  Stats stats_;
  Draws draws_{0};
  std::int64_t last_forward_ = 0;  // its number, if hurry() said which; 0: any
  // Of a model with a causal prefix: the text that is encoded, in the pieces in which it was.
  std::vector<std::vector<std::int64_t>> text_;
  bool text_known_ = true;
  // Of what is encoded now, while text is encoded again too.
  std::int64_t prefix_length_ = 0;
  std::uint64_t encoded_ = kEmptyText;
  std::uint64_t pass_ = 0;

  // Of a model without a prefix: what is kept, and what will be when the pass that was asked for is done.
  CachedCanvas cached_, caching_;

  Drafts drafts_;

  // While what is kept is computed again: what is asked for behind it, and how many pieces of text, or passes, were looked at.
  std::optional<Ask> due_;
  std::size_t restored_ = 0;

  // At the mark.
  Stats marked_stats_;
  Draws marked_draws_{0};
  std::int64_t committed_ = 0;  // tokens that were told, padding with them
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_SAMPLER_H
