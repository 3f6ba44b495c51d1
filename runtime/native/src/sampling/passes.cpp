#include "sampling/passes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "error.h"

namespace edgekit {
namespace {

// A denoiser that returns less than it was asked for must not make a loop read beyond an array.
template <typename Array>
void expect(const char *name, const Array &values, std::int64_t count) {
  if (static_cast<std::int64_t>(values.size()) == count) return;
  fail(EK_INTERNAL, "the denoiser was asked for ", count, " values of '", name, "' and returned ", values.size());
}

}  // namespace

void check_prompt(const std::vector<std::int64_t> &prompt, std::int64_t vocabulary) {
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || prompt[i] >= vocabulary)
      fail(EK_INVALID_ARGUMENT, "prompt token ", prompt[i], " at position ", i,
           " is outside the model's vocabulary of ", vocabulary, " tokens; use the tokenizer of this model");
  }
}

void check_within_vocabulary(const char *name, const std::vector<std::int64_t> &tokens, std::int64_t vocabulary) {
  for (const std::int64_t token : tokens) {
    if (token >= vocabulary)
      fail(EK_INVALID_ARGUMENT, name, " ", token, " is outside the model's vocabulary of ", vocabulary, " tokens");
  }
}

Passes::Passes(Denoiser &denoiser, Stats &stats, std::int64_t logits_budget_bytes)
    : denoiser_(denoiser), stats_(stats), vocabulary_(denoiser.vocabulary()) {
  rows_at_once_ = std::max<std::int64_t>(1, logits_budget_bytes / (4 * vocabulary_));
}

HeadResult Passes::run(const std::vector<std::int64_t> &ids, const HeadRequest &request,
                       const std::vector<float> &soft) {
  positions_ = static_cast<std::int64_t>(ids.size());
  if (!denoiser_.projects()) {
    last_ids_ = ids;
    last_soft_ = soft;
  }
  ++stats_.forwards;
  return checked(denoiser_.denoise(ids.data(), positions_, request, soft.empty() ? nullptr : soft.data()), request);
}

HeadResult Passes::again(const HeadRequest &request) {
  if (!denoiser_.projects()) return run(last_ids_, request, last_soft_);
  ++stats_.projections;
  return checked(denoiser_.project(request), request);
}

HeadResult Passes::checked(HeadResult result, const HeadRequest &request) const {
  const std::int64_t rows = request.all_rows ? positions_ : static_cast<std::int64_t>(request.rows.size());
  expect("argmax", result.argmax, rows);
  expect("argmax_prob", result.argmax_prob, rows);
  expect("entropy", result.entropy, rows);
  expect("log_z", result.log_z, rows);
  if (request.gumbel) {
    expect("sample", result.sample, rows);
    expect("sample_prob", result.sample_prob, rows);
  }
  if (request.soft) expect("soft", result.soft, rows * denoiser_.hidden_size());
  if (request.top_k > 0) {
    expect("top_ids", result.top_ids, rows * request.top_k);
    expect("top_z", result.top_z, rows * request.top_k);
  }
  const auto bad =
      std::count_if(result.log_z.begin(), result.log_z.end(), [](float value) { return !std::isfinite(value); });
  if (bad != 0)
    fail(EK_NOT_FINITE, "pass ", stats_.forwards, ": the scores of ", bad, " of ", rows,
         " positions are not finite; the weights or the quantization of this model are broken");
  return result;
}

}  // namespace edgekit
