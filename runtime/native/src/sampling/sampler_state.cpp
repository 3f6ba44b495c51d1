// Saving a sampler and loading it again.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "error.h"
#include "sampling/generate.h"
#include "sampling/sampler.h"

namespace edgekit {
namespace {

using Ids = std::vector<std::int64_t>;

// Beyond what anybody counts to, and far from where counting on would overflow.
constexpr std::int64_t kMostCount = std::int64_t{1} << 62;

// What a state goes on with; `step` is the next step of a canvas, or its end. Numbers of the format.
enum class Phase : std::int64_t { begin = 0, encode = 1, step = 2, done = 3 };

Phase phase_of(AskKind kind) {
  switch (kind) {
    case AskKind::forget:
      return Phase::begin;
    case AskKind::encode:
      return Phase::encode;
    case AskKind::done:
      return Phase::done;
    default:
      return Phase::step;
  }
}

// Writer and reader take a field each in their way.
template <typename Archive, typename Value>
void number(Archive &archive, const char *name, Value &value) {
  archive.integer(name, value, {0, kMostCount});
}

template <typename Archive, typename Counters>
void count(Archive &archive, Counters &stats) {
  number(archive, "a number of steps", stats.denoising_steps);
  number(archive, "a number of passes", stats.forwards);
  number(archive, "a number of head passes", stats.projections);
  number(archive, "a number of prefills", stats.prefills);
  number(archive, "a number of committed tokens", stats.committed_tokens);
  number(archive, "a number of canvases", stats.canvases);
  number(archive, "a number of rows", stats.rows);
}

template <typename Archive, typename Positions>
void positions(Archive &archive, Positions &lengths) {
  constexpr StateLimits limits{0, 4 * kMostTokens};
  archive.integer("a number of new tokens", lengths.new_tokens, limits);
  archive.integer("a length of the prefix", lengths.prefix, limits);
  archive.integer("a length of the canvas", lengths.canvas, limits);
  archive.integer("a number of canvases", lengths.canvases, limits);
  archive.integer("a number of steps", lengths.steps, limits);
  archive.integer("a number of segments", lengths.segments, limits);
}

}  // namespace

std::string Sampler::save(const std::string &bundle) const {
  const std::unique_ptr<Sampler> own = copy();
  own->drafts_.clear();  // nothing goes on that was not told
  if (own->due_) {
    own->ask_ = std::move(*own->due_);
    own->due_.reset();
  } else if (own->ask_.kind == AskKind::committed) {
    own->next();  // what was told is not told again
  }
  const AskKind kind = own->ask_.kind;
  const Phase phase = phase_of(kind);
  if (phase == Phase::begin)
    own->text_.clear();
  else
    check_text_known();
  if (phase == Phase::step && kind != AskKind::draft) {
    own->stats_ = own->marked_stats_;
    own->draws_ = own->marked_draws_;
  }

  StateWriter state;
  state.text("bundle", bundle);
  state.text("sampler", own->name());
  state.text("options", own->options_text());
  number(state, "a vocabulary", own->model_.vocabulary);
  number(state, "a hidden size", own->model_.hidden_size);
  state.integer("a place to go on", static_cast<std::int64_t>(phase), {0, 3});
  state.word(own->draws_.seed());
  state.word(own->draws_.made());
  positions(state, own->lengths_);
  count(state, own->stats_);
  state.flag("an end", own->stats_.finish_reason == FinishReason::eos);
  number(state, "a last pass", own->last_forward_);
  number(state, "a number of told tokens", own->committed_);
  state.integer("a number of pieces", static_cast<std::int64_t>(own->text_.size()), {0, kMostTokens});
  for (const auto &piece : own->text_)
    state.integers("encoded text", piece, {1, kMostTokens}, {0, own->model_.vocabulary - 1});
  CachedCanvas::fields(state, own->cached_, own->model_.vocabulary);
  state.integers("kept text", own->ask_.kept, {0, kMostTokens}, {0, own->model_.vocabulary - 1});
  if (phase != Phase::done) own->write(state);
  return state.sealed();
}

void Sampler::load(StateReader &state) {
  std::int64_t phase = 0, pieces = 0;
  std::uint64_t seed = 0, made = 0;
  bool ended = false;
  std::vector<std::int64_t> kept;
  state.integer("a place to go on", phase, {0, 3});
  state.word(seed);
  state.word(made);
  draws_ = Draws(seed, made);
  positions(state, lengths_);
  count(state, stats_);
  state.flag("an end", ended);
  stats_.finish_reason = ended ? FinishReason::eos : FinishReason::length;
  number(state, "a last pass", last_forward_);
  number(state, "a number of told tokens", committed_);
  state.integer("a number of pieces", pieces, {0, kMostTokens});
  text_.clear();
  text_known_ = true;
  prefix_length_ = 0;
  encoded_ = kEmptyText;
  for (std::int64_t i = 0; i < pieces; ++i) {
    text_.emplace_back();
    state.integers("encoded text", text_.back(), {1, kMostTokens}, {0, model_.vocabulary - 1});
    encoded(text_.back());
    check_state(prefix_length_ <= kMostTokens, "encoded text");
  }
  CachedCanvas::fields(state, cached_, model_.vocabulary);
  check_state(cached_.passes() == 0 || text_.empty(), "a kept canvas");
  if (cached_.passes() > 0) behind_cached(cached_.passes());
  state.integers("kept text", kept, {0, kMostTokens}, {0, model_.vocabulary - 1});
  const auto at = static_cast<Phase>(phase);
  if (at != Phase::done) read(state);
  state.end();
  if (at == Phase::begin) return ask_forget();
  if (at == Phase::step) go_on();
  if (at == Phase::encode) ask_waiting();
  if (at == Phase::done) {
    ask_.kept = std::move(kept);
    tell_done();
  }
  restore();
}

std::unique_ptr<Sampler> load_sampler(std::string_view bytes, SamplerModel model, const std::string &bundle) {
  StateReader state(bytes);
  std::string saved_for, name, text;
  state.text("bundle", saved_for);
  if (saved_for != bundle)
    fail(EK_INVALID_ARGUMENT, "the saved state belongs to another bundle: ", saved_for, ", not ", bundle,
         "; load it with the bundle that it was saved with");
  state.text("sampler", name);
  state.text("options", text);
  std::int64_t vocabulary = 0, hidden = 0;
  number(state, "a vocabulary", vocabulary);
  number(state, "a hidden size", hidden);
  check_state(vocabulary == model.vocabulary && hidden == model.hidden_size, "it is of a model of another size");
  const Json options = Json::parse(text, "the options of the saved state");
  std::unique_ptr<Sampler> loaded = sampler(sampler_options(name, {}, members_of(options), 0), std::move(model));
  loaded->load(state);
  return loaded;
}

}  // namespace edgekit
