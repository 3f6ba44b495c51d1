#include "sampling/diffusion_gemma.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>

#include "error.h"
#include "sampling/draws.h"
#include "sampling/passes.h"
#include "sampling/portable.h"
#include "sampling/schedule.h"

namespace edgekit {
namespace {

using Ids = std::vector<std::int64_t>;

// The stopping rule over the steps of one canvas.
class Stability {
 public:
  explicit Stability(const DiffusionGemmaOptions &options) : options_(options) {}

  // Whether to stop after a step with this argmax, which joins the history.
  bool reached(const Ids &best, const std::vector<float> &entropy) {
    if (!options_.stability_threshold || !options_.confidence_threshold) return false;
    const auto needed = static_cast<std::size_t>(*options_.stability_threshold);
    const bool stable = history_.size() >= needed &&
                        std::all_of(history_.begin(), history_.end(), [&](const Ids &past) { return past == best; });
    history_.push_back(best);
    if (history_.size() > needed) history_.pop_front();
    const auto count = static_cast<std::int64_t>(entropy.size());
    return stable && total(entropy.data(), count) / static_cast<double>(count) < *options_.confidence_threshold;
  }

 private:
  const DiffusionGemmaOptions &options_;
  std::deque<Ids> history_;  // `stability_threshold` steps at most
};

class Loop {
 public:
  Loop(Denoiser &denoiser, const DiffusionGemmaOptions &options, std::uint64_t seed, Reporter &reporter)
      : options_(options),
        reporter_(reporter),
        draws_(seed),
        // No step asks for full scores.
        passes_(denoiser, reporter.stats(), 1) {}

  // The argmax canvas of the last step.
  Ids denoise_canvas(std::int64_t canvas_index) {
    const std::int64_t vocabulary = passes_.vocabulary(), length = options_.canvas_length;
    const std::int64_t steps = options_.max_denoising_steps;
    Ids canvas = draws_.integers(vocabulary, length);
    Stability stability(options_);
    std::vector<float> soft;
    for (std::int64_t remaining = steps;; --remaining) {
      // The last step commits its argmax: neither its sample nor its expected embedding is ever looked at.
      const bool last = remaining == 1;
      const GumbelDraw gumbel = draws_.gumbel(1.0f);
      HeadRequest request;
      request.temperature = linear_temperature(remaining, steps, options_.t_min, options_.t_max);
      if (!last) request.gumbel = gumbel;
      request.soft = !last;
      HeadResult result = passes_.run(canvas, request, soft);
      ++reporter_.stats().denoising_steps;
      const std::vector<std::uint8_t> accepted = accept_by_entropy(result.entropy, options_.entropy_bound);
      const Ids fresh = draws_.integers(vocabulary, length);
      reporter_.draft(canvas_index, steps - remaining + 1, canvas_index * length, result.argmax.data(), accepted);
      if (last || stability.reached(result.argmax, result.entropy)) return std::move(result.argmax);
      for (std::size_t i = 0; i < canvas.size(); ++i) canvas[i] = accepted[i] != 0 ? result.sample[i] : fresh[i];
      soft = std::move(result.soft);
    }
  }

 private:
  const DiffusionGemmaOptions &options_;
  Reporter &reporter_;
  Draws draws_;
  Passes passes_;
};

// What of a canvas is text and stays in a conversation: all up to the first end token.
Ids kept_of(const Ids &ids, const DiffusionGemmaOptions &options) {
  const auto end = std::find_if(ids.begin(), ids.end(),
                                [&](std::int64_t token) { return contains(options.eos_token_ids, token); });
  return {ids.begin(), end == ids.end() ? end : end + 1};
}

}  // namespace

void generate(Denoiser &denoiser, const Ids &prompt, const DiffusionGemmaOptions &options, std::uint64_t seed,
              const EventCallback &callback, Generation &generation) {
  Reporter reporter(callback, generation);
  Stats &stats = reporter.stats();
  options.check();
  check_prompt(prompt, denoiser.vocabulary());
  if (prompt.empty())
    fail(EK_INVALID_ARGUMENT, "the prompt is empty; this model needs at least its begin-of-sequence token");
  check_within_vocabulary("eos_token_ids", options.eos_token_ids, denoiser.vocabulary());
  if (options.pad_token_id) check_within_vocabulary("pad_token_id", {*options.pad_token_id}, denoiser.vocabulary());
  if (!options.continue_prefix) denoiser.forget();
  std::int64_t length =
      denoiser.prefix_length() + static_cast<std::int64_t>(denoiser.uncached().size() + prompt.size());
  const std::int64_t canvases = options.canvases(length);

  Loop loop(denoiser, options, seed, reporter);
  Ids next = prompt;
  for (std::int64_t canvas = 0; canvas < canvases; ++canvas) {
    denoiser.encode(next.data(), static_cast<std::int64_t>(next.size()));
    next.clear();
    ++stats.prefills;
    ++stats.canvases;
    Ids committed = loop.denoise_canvas(canvas);
    Ids kept = kept_of(committed, options);
    const bool ended = contains(options.eos_token_ids, kept.back());
    if (options.pad_token_id) {
      std::fill(committed.begin() + static_cast<std::ptrdiff_t>(kept.size()), committed.end(), *options.pad_token_id);
    }
    // Before the callback hears of it: where that stops, the conversation has it.
    denoiser.keep(std::move(kept));
    const auto count = static_cast<std::int64_t>(committed.size());
    // Tokens per forward are counted as in transformers: everything that is not the padding token.
    stats.committed_tokens +=
        options.pad_token_id ? count - std::count(committed.begin(), committed.end(), *options.pad_token_id) : count;
    length += count;
    reporter.committed(canvas, committed.data(), count);
    if (ended) stats.finish_reason = FinishReason::eos;
    if (ended || (options.max_length && length >= *options.max_length)) break;
  }
  reporter.done();
}

}  // namespace edgekit
