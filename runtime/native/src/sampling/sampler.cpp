#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "error.h"

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

void Sampler::next(HeadResult answer) {
  if (stats_.finish_reason == FinishReason::cancelled) stats_.finish_reason = FinishReason::length;  // it goes on
  if (ask_.kind == AskKind::forget) {
    prefix_length_ = 0;
    encoded_ = kEmptyText;
  }
  if (ask_.kind == AskKind::encode) encoded(ask_.ids);
  if (delayed_) return go_on_restoring();
  if (ask_.kind == AskKind::denoise || ask_.kind == AskKind::project) check(answer);
  if (ask_.kind == AskKind::forget) {
    text_.clear();
    text_known_ = true;
  }
  if (ask_.kind == AskKind::encode) text_.push_back(ask_.ids);
  if (ask_.kind == AskKind::committed) committed_ += static_cast<std::int64_t>(ask_.ids.size());
  if (ask_.kind != AskKind::done) proceed(std::move(answer));
}

void Sampler::check_text_known() const {
  if (text_known_) return;
  fail(EK_INVALID_STATE, "the generation follows ", model_.prefix_length,
       " positions whose token ids are not known; give the ids with the model, or begin without continue_prefix");
}

void Sampler::restore() {
  if (!delayed_) {
    if (ask_.kind == AskKind::forget) return;
    check_text_known();
    // The hidden states of the pass are not there either.
    if (ask_.kind == AskKind::project) {
      ask_.kind = AskKind::denoise;
      --stats_.projections;
      ++stats_.forwards;
    }
    delayed_ = std::move(ask_);
  }
  restored_ = 0;
  ask_forget();
}

void Sampler::go_on_restoring() {
  if (restored_ < text_.size()) return ask_encode(text_[restored_++]);
  ask_ = std::move(*delayed_);
  delayed_.reset();
}

void Sampler::ask_waiting() { check_state(false, "its family encodes no text"); }

void Sampler::mark() {
  marked_stats_ = stats_;
  marked_draws_ = draws_;
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
                         std::vector<std::uint8_t> accepted) {
  ask_ = {};
  ask_.kind = AskKind::draft;
  ask_.canvas_index = canvas_index;
  ask_.step = step;
  ask_.start = start;
  ask_.ids = std::move(ids);
  ask_.accepted = std::move(accepted);
}

void Sampler::tell_committed(std::int64_t canvas_index, Ids ids, Ids kept) {
  ask_ = {};
  ask_.kind = AskKind::committed;
  ask_.canvas_index = canvas_index;
  ask_.start = committed_;
  ask_.ids = std::move(ids);
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

void Sampler::check_prompt(const Ids &prompt) const {
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || prompt[i] >= model_.vocabulary)
      fail(EK_INVALID_PROMPT, "prompt token ", prompt[i], " at position ", i,
           " is outside the model's vocabulary of ", model_.vocabulary, " tokens; use the tokenizer of this model");
  }
}

void Sampler::check(const HeadResult &answer) const {
  const HeadRequest &request = ask_.request;
  const std::int64_t rows = ask_.rows();
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
  if (request.logits) expect("logits", answer.logits, rows * model_.vocabulary);
  const auto bad =
      std::count_if(answer.log_z.begin(), answer.log_z.end(), [](float value) { return !std::isfinite(value); });
  if (bad != 0)
    fail(EK_NOT_FINITE, "pass ", stats_.forwards, ": the scores of ", bad, " of ", rows,
         " positions are not finite; the weights or the quantization of this model are broken, or the engine that ran it");
}

}  // namespace edgekit
