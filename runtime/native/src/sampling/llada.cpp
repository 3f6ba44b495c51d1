#include "sampling/llada.h"

#include <limits>
#include <optional>
#include <utility>

#include "sampling/draws.h"
#include "sampling/llada_scores.h"
#include "sampling/passes.h"
#include "sampling/proposal.h"
#include "sampling/schedule.h"

namespace edgekit {
namespace {

using Ids = std::vector<std::int64_t>;

// Which of the open positions to commit, as indices into them.
Ids choose(Proposal proposal, std::int64_t step, const LladaOptions &options, const Ids &end_ids) {
  std::vector<float> &confidence = proposal.confidence;
  if (options.confidence_eos_eot_inf) {
    for (std::size_t i = 0; i < confidence.size(); ++i) {
      if (contains(end_ids, proposal.tokens[i])) confidence[i] = -std::numeric_limits<float>::infinity();
    }
  }
  std::int64_t count;
  if (options.threshold)
    count = count_above_threshold(confidence, *options.threshold);
  else if (options.factor)
    count = count_by_factor(confidence, *options.factor);
  else
    count = transfer_count(options.block_length, options.steps / options.blocks(), step);
  return most_confident(std::move(confidence), count);
}

// A token and its confidence for each of `rows` (indices into ids).
Proposal propose(Passes &passes, const Ids &ids, std::int64_t prompt, const Ids &rows, const LladaOptions &options,
                 Draws &draws) {
  std::optional<GumbelDraw> gumbel;
  if (options.temperature > 0) gumbel = draws.gumbel(static_cast<float>(options.temperature));
  Proposal proposal;
  if (options.cfg_scale > 0 || options.logits_eos_inf) {
    proposal = propose_from_scores(passes, ids, prompt, rows, options, gumbel);
  } else {
    HeadRequest request;
    request.all_rows = false;
    request.rows = rows;
    request.gumbel = gumbel;
    HeadResult result = passes.run(ids, request);
    proposal.tokens = std::move(gumbel ? result.sample : result.argmax);
    proposal.confidence = std::move(gumbel ? result.sample_prob : result.argmax_prob);
  }
  if (options.remasking == "random") {
    const std::vector<double> uniform = draws.uniform(static_cast<std::int64_t>(rows.size()));
    for (std::size_t i = 0; i < uniform.size(); ++i) proposal.confidence[i] = static_cast<float>(uniform[i]);
  }
  return proposal;
}

}  // namespace

void generate(Denoiser &denoiser, const Ids &prompt, const LladaOptions &options, std::uint64_t seed,
              const EventCallback &callback, Generation &generation) {
  Reporter reporter(callback, generation);
  Stats &stats = reporter.stats();
  options.check();
  check_prompt(prompt, denoiser.vocabulary());
  const Ids end_ids = options.end_ids();
  check_within_vocabulary("mask_token_id", {options.mask_token_id}, denoiser.vocabulary());
  check_within_vocabulary("eos_token_ids", options.eos_token_ids, denoiser.vocabulary());
  check_within_vocabulary("eot_token_ids", options.eot_token_ids, denoiser.vocabulary());
  denoiser.reset();

  Draws draws(seed);
  Passes passes(denoiser, stats, options.logits_budget_bytes);
  const auto first = static_cast<std::int64_t>(prompt.size());
  Ids ids = prompt;
  ids.resize(prompt.size() + static_cast<std::size_t>(options.gen_length), options.mask_token_id);
  std::int64_t *answer = ids.data() + first;
  bool ended = false;
  for (std::int64_t block = 0; block < options.blocks(); ++block) {
    const std::int64_t start = block * options.block_length;
    std::vector<std::uint8_t> open(static_cast<std::size_t>(options.block_length), 1);
    std::optional<std::int64_t> end;
    ++stats.canvases;
    for (std::int64_t step = 0; !end; ++step) {
      const Ids positions = positions_of(open);
      if (positions.empty()) break;
      Ids rows = positions;
      for (std::int64_t &row : rows) row += first + start;
      const Proposal proposal = propose(passes, ids, first, rows, options, draws);
      ++stats.denoising_steps;
      std::vector<std::uint8_t> accepted(static_cast<std::size_t>(options.gen_length), 0);
      for (const std::int64_t picked : choose(proposal, step, options, end_ids)) {
        const std::int64_t position = positions[static_cast<std::size_t>(picked)];
        answer[start + position] = proposal.tokens[static_cast<std::size_t>(picked)];
        open[static_cast<std::size_t>(position)] = 0;
        accepted[static_cast<std::size_t>(start + position)] = 1;
      }
      reporter.draft(block, step + 1, 0, answer, accepted);
      if (options.stop_at_eos) end = answer_end(answer + start, open, end_ids);
    }
    const std::int64_t count = end.value_or(options.block_length);
    stats.committed_tokens += count;
    for (std::int64_t i = 0; i < count; ++i) ended = ended || contains(end_ids, answer[start + i]);
    reporter.committed(block, answer + start, count);
    if (end) break;
  }
  stats.finish_reason = ended ? FinishReason::eos : FinishReason::length;
  reporter.done();
}

}  // namespace edgekit
