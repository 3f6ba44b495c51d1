#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

#include "error.h"
#include "sampling/roles.h"

namespace edgekit {
namespace {

using Ids = std::vector<std::int64_t>;

// An answer that holds less than it was asked for must not make a procedure read beyond an array.
template <typename Array>
void expect(const char *name, const Array &values, std::int64_t count) {
  if (static_cast<std::int64_t>(values.size()) == count) return;
  fail(EK_INTERNAL, "the denoiser was asked for ", count, " values of '", name, "' and returned ", values.size());
}

}  // namespace

Sampler::Sampler(SamplerModel model) : model_(std::move(model)), text_(model_.encoded) {
  for (const Ids &piece : text_) encoded(piece);
  text_known_ = prefix_length_ == model_.prefix_length;
  if (text_known_) return;
  prefix_length_ = model_.prefix_length;
  encoded_ = kAnyText;
}

void Sampler::encoded(const Ids &ids) {
  prefix_length_ += static_cast<std::int64_t>(ids.size());
  encoded_ = text_number(encoded_, ids.data(), ids.size());
}

void Sampler::ask_behind_text() {
  ask_.prefix_length = prefix_length_;
  ask_.text = encoded_;
}

bool Sampler::is_text(const AskSegment &segment) const {
  if (segment.seen || segment.adapter != 0) return false;
  if (model_.prefix_block == 1) return segment.block == 1;
  const auto count = static_cast<std::int64_t>(segment.ids.size());
  return segment.block == 0 ? count <= model_.prefix_block : segment.block == model_.prefix_block;
}

void Sampler::know(const Ids &ids) {
  encoded(ids);
  text_.push_back(ids);
}

void Sampler::crop_text(std::int64_t length) {
  prefix_length_ = 0;
  encoded_ = kEmptyText;
  cached_ = {};
  std::size_t pieces = 0;
  while (prefix_length_ < length) {
    Ids &piece = text_[pieces++];
    piece.resize(static_cast<std::size_t>(std::min(length - prefix_length_, static_cast<std::int64_t>(piece.size()))));
    encoded(piece);
  }
  text_.resize(pieces);
}

// What was asked, other than a pass, has been done: whether the procedure goes on with it.
bool Sampler::goes_on() {
  if (stats_.finish_reason == FinishReason::cancelled) stats_.finish_reason = FinishReason::length;  // it goes on
  if (ask_.kind == AskKind::forget) {
    prefix_length_ = 0;
    encoded_ = kEmptyText;
  }
  if (ask_.caches && !due_) {
    cached_ = std::move(caching_);
    cached_.computed();
  }
  if (ask_.caches) behind_cached(due_ ? static_cast<std::int64_t>(restored_) : cached_.passes());
  if (due_) {
    if (ask_.kind == AskKind::encode) encoded(ask_.ids);
    go_on_restoring();
    return false;
  }
  if (ask_.kind == AskKind::forget) {
    text_.clear();
    cached_ = {};
    text_known_ = true;
  }
  if (ask_.kind == AskKind::encode) {
    know(ask_.ids);
    stats_.rows += static_cast<std::int64_t>(ask_.ids.size());
  }
  if (ask_.kind == AskKind::crop) crop_text(ask_.prefix_length);
  if (ask_.kind == AskKind::committed) committed_ += static_cast<std::int64_t>(ask_.ids.size());
  return ask_.kind != AskKind::done;
}

void Sampler::next(HeadResult answer) {
  if (ask_.kind == AskKind::pass) return next(std::vector<HeadResult>{std::move(answer)});
  if (ask_.kind == AskKind::denoise || ask_.kind == AskKind::project) check(answer, ask_.request, ask_.rows());
  if (!goes_on()) return;
  if (drafts_.any()) {
    if (const std::optional<AskSegment> step = step_of(ask_)) drafts_.predict(*step, answer);
  }
  proceed(std::move(answer));
  proceed_drafted();
}

void Sampler::next(std::vector<HeadResult> answers) {
  if (ask_.kind != AskKind::pass) return next(answers.empty() ? HeadResult() : std::move(answers.front()));
  std::size_t asked = 0;
  for (const AskSegment &segment : ask_.segments) {
    if (segment.request && asked++ < answers.size()) check(answers[asked - 1], *segment.request, segment.rows());
  }
  if (answers.size() != asked)
    fail(EK_INTERNAL, "the denoiser was asked for ", asked, " answers and returned ", answers.size());
  if (!goes_on()) return;
  for (const AskSegment &segment : ask_.segments) {
    if (segment.keep && !ask_.caches) know(segment.ids);
  }
  if (drafts_.any()) {
    const auto own = answers.end() - static_cast<std::ptrdiff_t>(drafts_.asked());
    drafts_.verify({std::make_move_iterator(own), std::make_move_iterator(answers.end())});
    answers.erase(own, answers.end());
    drafts_.predict(*std::find_if(ask_.segments.begin(), ask_.segments.end(),
                                  [](const AskSegment &segment) { return segment.request.has_value(); }),
                    answers.front());
  }
  proceed_pass(std::move(answers));
  proceed_drafted();
}

std::int64_t Sampler::draft_ahead(std::int64_t steps) {
  drafts_ = Drafts(model_.segments == 0 ? steps : std::min(steps, model_.segments));
  return drafts_.steps();
}

// Goes on with steps that the last pass had beside its own, and asks for those to come beside the next.
void Sampler::proceed_drafted() {
  if (!drafts_.any()) return;
  for (std::optional<AskSegment> step = step_of(ask_); step; step = step_of(ask_)) {
    std::optional<HeadResult> answer = drafts_.take(*step);
    if (!answer) return ask_drafted(std::move(*step));
    // No pass of its own.
    --stats_.forwards;
    stats_.rows -= static_cast<std::int64_t>(step->ids.size());
    drafts_.predict(*step, *answer);
    if (ask_.kind == AskKind::pass)
      proceed_pass({std::move(*answer)});
    else
      proceed(std::move(*answer));
  }
  if (!tells()) drafts_.clear();  // what is kept changes
}

// A copy goes on from the step that is asked for, as if each were what the last one predicts.
void Sampler::ask_drafted(AskSegment step) {
  std::vector<AskSegment> segments{std::move(step)};
  std::unique_ptr<Sampler> ahead;
  while (static_cast<std::int64_t>(segments.size()) < drafts_.steps()) {
    std::optional<HeadResult> guess = drafts_.guess(segments.back());
    if (!guess) break;
    if (!ahead) {
      ahead = copy();
      ahead->drafts_ = Drafts();
      ahead->last_forward_ = 0;
    }
    ahead->next(std::move(*guess));
    while (ahead->tells()) ahead->next();
    std::optional<AskSegment> next = step_of(ahead->ask_);
    if (!next) break;
    segments.push_back(std::move(*next));
  }
  if (!ahead || segments.size() == 1) return;
  ask_.kind = AskKind::pass;
  ask_.ids.clear();
  ask_.request = {};
  for (std::size_t i = 1; i < segments.size(); ++i) stats_.rows += static_cast<std::int64_t>(segments[i].ids.size());
  drafts_.ask({segments.begin() + 1, segments.end()});
  ask_.segments = std::move(segments);
}

void Sampler::proceed_pass(std::vector<HeadResult> &&) { fail(EK_INTERNAL, "this procedure asks for no pass of segments"); }

void Sampler::check_text_known() const {
  if (text_known_) return;
  fail(EK_INVALID_STATE, "the generation follows ", model_.prefix_length,
       " positions whose token ids are not known; give the ids with the model, or begin without continue_prefix");
}

void Sampler::restore() {
  if (!due_) {
    if (ask_.kind == AskKind::forget) return;
    check_text_known();
    // The hidden states of the pass are not there either.
    if (ask_.kind == AskKind::project) {
      ask_.kind = AskKind::denoise;
      --stats_.projections;
      ++stats_.forwards;
    }
    due_ = std::move(ask_);
  }
  restored_ = 0;
  ask_forget();
}

void Sampler::go_on_restoring() {
  if (restored_ < text_.size()) return ask_encode(text_[restored_++]);
  while (static_cast<std::int64_t>(restored_) < cached_.passes()) {
    AskSegment segment = cached_.segment(static_cast<std::int64_t>(restored_++));
    if (segment.keep) return ask_cache(std::move(segment));
  }
  ask_ = std::move(*due_);
  due_.reset();
}

void Sampler::ask_waiting() { check_state(false, "its family encodes no text"); }

void Sampler::mark() {
  marked_stats_ = stats_;
  marked_draws_ = draws_;
}

void Sampler::hurry(std::int64_t passes) {
  if (passes < 1 || passes > kMostTokens)
    fail(EK_INVALID_ARGUMENT, "a generation to end within ", passes, " passes; use 1..", kMostTokens);
  if (!hurries()) fail(EK_INVALID_STATE, "the procedure ", name(), " cannot end sooner than it does");
  last_forward_ = stats_.forwards + passes;
}

void Sampler::reseed(std::uint64_t seed) {
  const AskKind kind = due_ ? due_->kind : ask_.kind;
  const bool step = kind == AskKind::denoise || kind == AskKind::project || kind == AskKind::pass;
  if (step && due_)
    fail(EK_INVALID_STATE, "the text of the sampler is encoded again before a step goes on; reseed it behind that step");
  draws_ = Draws(seed, (step ? marked_draws_ : draws_).made());
  marked_draws_ = Draws(seed, marked_draws_.made());
  if (!step) return;
  drafts_.clear();
  stats_ = marked_stats_;
  go_on();
}

void Sampler::ask_forget() {
  ask_ = {};
  ask_.kind = AskKind::forget;
}

void Sampler::ask_encode(Ids ids) {
  ask_ = {};
  ask_.kind = AskKind::encode;
  ask_.ids = std::move(ids);
  ask_behind_text();
}

void Sampler::ask_denoise(Ids ids, HeadRequest request, std::vector<float> soft) {
  ask_ = {};
  ask_.kind = AskKind::denoise;
  ask_.ids = std::move(ids);
  ask_.request = std::move(request);
  ask_.soft = std::move(soft);
  ask_behind_text();
  ++stats_.forwards;
  stats_.rows += static_cast<std::int64_t>(ask_.ids.size());
}

void Sampler::ask_pass(std::vector<AskSegment> segments) {
  ask_ = {};
  ask_.kind = AskKind::pass;
  ask_.segments = std::move(segments);
  ask_behind_text();
  ++stats_.forwards;
  for (const AskSegment &segment : ask_.segments) {
    stats_.rows += static_cast<std::int64_t>(segment.ids.size());
    if (segment.keep && !(is_text(segment) && segment.at == prefix_length_))
      fail(EK_INTERNAL, "a sampler keeps rows from ", segment.at, " on that are no text behind ", prefix_length_);
  }
}

void Sampler::ask_cache(AskSegment segment) {
  ask_ = {};
  ask_.kind = AskKind::pass;
  ask_.segments.push_back(std::move(segment));
  ask_.caches = true;
  ask_behind_text();
}

void Sampler::ask_cached(CachedCanvas next, HeadRequest request) {
  caching_ = std::move(next);
  AskSegment segment = caching_.segment(caching_.passes());
  Ids row_of(static_cast<std::size_t>(caching_.length()), 0);
  for (std::size_t row = 0; row < segment.ids.size(); ++row)
    row_of[static_cast<std::size_t>(segment.positions[row])] = static_cast<std::int64_t>(row);
  for (std::int64_t &row : request.rows) row = row_of[static_cast<std::size_t>(row)];
  segment.request = std::move(request);
  ++stats_.forwards;
  stats_.rows += static_cast<std::int64_t>(segment.ids.size());
  ask_cache(std::move(segment));
}

void Sampler::ask_delayed(const Ids &canvas, std::int64_t prompt, const std::vector<std::uint8_t> &open, bool shifted,
                          HeadRequest request) {
  std::vector<std::uint8_t> comes(canvas.size(), 0);
  for (std::size_t i = static_cast<std::size_t>(prompt); i < comes.size(); ++i)
    comes[i] = open[i - static_cast<std::size_t>(prompt)];
  std::vector<std::uint8_t> fresh = comes;
  for (std::size_t i = 1; shifted && i < fresh.size(); ++i) {
    if (comes[i]) fresh[i - 1] = 1;
  }
  CachedCanvas next = cached_;
  next.show(canvas, comes, fresh);
  ask_cached(std::move(next), std::move(request));
}

// Keys and values of other positions are those of the pass that kept them.
void Sampler::ask_part(const Ids &canvas, std::int64_t start, std::int64_t stop, HeadRequest request) {
  const auto first = canvas.begin();
  AskSegment segment;
  segment.ids.assign(first + static_cast<std::ptrdiff_t>(start), first + static_cast<std::ptrdiff_t>(stop));
  segment.at = start;
  segment.seen = {{-1, 0, start}, {-1, stop, static_cast<std::int64_t>(canvas.size()) - stop}};
  for (std::int64_t &row : request.rows) row -= start;
  segment.request = std::move(request);
  ask_pass({std::move(segment)});
}

void Sampler::ask_block(const std::string &cache, bool whole, const Ids &canvas, std::int64_t start, std::int64_t stop,
                        HeadRequest request) {
  if (cache == "none") return ask_denoise(canvas, std::move(request));
  if (whole) {
    const std::vector<std::uint8_t> none(canvas.size(), 0);
    CachedCanvas next;
    next.show(canvas, none, none);
    return ask_cached(std::move(next), std::move(request));
  }
  ask_part(canvas, start, cache == "dual" ? stop : static_cast<std::int64_t>(canvas.size()), std::move(request));
}

// What earlier passes kept is there.
void Sampler::behind_cached(std::int64_t pass) {
  prefix_length_ = cached_.kept(pass);
  encoded_ = prefix_length_ == 0 ? kEmptyText : kNoText;
}

void Sampler::ask_crop(std::int64_t length) {
  ask_ = {};
  ask_.kind = AskKind::crop;
  ask_.prefix_length = length;
  ask_.text = kAnyText;
}

void Sampler::ask_again(const Ids &ids, HeadRequest request) {
  if (!model_.projects) return ask_denoise(ids, std::move(request));
  ask_ = {};
  ask_.kind = AskKind::project;
  ask_.ids = ids;
  ask_.request = std::move(request);
  ask_behind_text();
  ++stats_.projections;
}

void Sampler::tell_draft(std::int64_t canvas_index, std::int64_t step, std::int64_t start, Ids ids,
                         std::vector<std::uint8_t> accepted, Ids kept) {
  ask_ = {};
  ask_.kind = AskKind::draft;
  ask_.canvas_index = canvas_index;
  ask_.step = step;
  ask_.start = start;
  ask_.ids = std::move(ids);
  ask_.accepted = std::move(accepted);
  ask_.kept = std::move(kept);
}

void Sampler::tell_committed(std::int64_t canvas_index, Ids ids, Ids kept, std::int64_t padding) {
  ask_ = {};
  ask_.kind = AskKind::committed;
  ask_.canvas_index = canvas_index;
  ask_.start = committed_;
  ask_.ids = std::move(ids);
  ask_.text_count = static_cast<std::int64_t>(ask_.ids.size()) - padding;
  ask_.kept = std::move(kept);
}

void Sampler::tell_done() {
  Ids kept = std::move(ask_.kept);
  ask_ = {};
  ask_.kind = AskKind::done;
  ask_.kept = std::move(kept);
}

std::int64_t Sampler::rows_within(std::int64_t bytes) const {
  return std::max<std::int64_t>(1, bytes / (4 * model_.vocabulary));
}

Sampler::Beginning Sampler::beginning(const Ids &prompt, bool goes_on) const {
  Beginning own;
  if (goes_on) own = {model_.uncached, model_.prefix_length};
  own.waiting.insert(own.waiting.end(), prompt.begin(), prompt.end());
  own.length += static_cast<std::int64_t>(own.waiting.size());
  return own;
}

void Sampler::check_prompt(const Ids &prompt) const {
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || prompt[i] >= model_.vocabulary)
      fail(EK_INVALID_PROMPT, "prompt token ", prompt[i], " at position ", i,
           " is outside the model's vocabulary of ", model_.vocabulary, " tokens; use the tokenizer of this model");
  }
}

void Sampler::check(const HeadResult &answer, const HeadRequest &request, std::int64_t rows) const {
  expect("argmax", answer.argmax, rows);
  expect("others", answer.others, rows);
  expect("entropy", answer.entropy, rows);
  expect("log_z", answer.log_z, rows);
  if (request.gumbel) {
    expect("sample", answer.sample, rows);
    expect("sample_prob", answer.sample_prob, rows);
  }
  if (request.soft) expect("soft", answer.soft, rows * model_.hidden_size);
  if (request.top_k > 0) {
    expect("top_ids", answer.top_ids, rows * request.top_k);
    expect("top_z", answer.top_z, rows * request.top_k);
  }
  if (request.roles) expect("roles", answer.roles, rows * kRoles);
  if (request.logits) expect("logits", answer.logits, rows * model_.vocabulary);
  const auto bad =
      std::count_if(answer.log_z.begin(), answer.log_z.end(), [](float value) { return !std::isfinite(value); });
  if (bad != 0)
    fail(EK_NOT_FINITE, "pass ", stats_.forwards, ": the scores of ", bad, " of ", rows,
         " positions are not finite; the weights or the quantization of this model are broken, or the engine that ran it");
}

}  // namespace edgekit
