#include "sampling/dream.h"

#include <optional>

#include "sampling/draws.h"
#include "sampling/dream_proposal.h"
#include "sampling/passes.h"
#include "sampling/portable.h"
#include "sampling/schedule.h"

namespace edgekit {
namespace {

using Ids = std::vector<std::int64_t>;

// Which of the open positions to unmask, as indices into them.
Ids choose(const std::vector<float> &confidence, std::int64_t count, const DreamOptions &options, Draws &draws) {
  if (options.alg_temp.value_or(0) == 0) return most_confident(confidence, count);
  // The top n of scores with Gumbel noise are n draws without replacement from their softmax.
  std::vector<double> noised = draws.uniform(static_cast<std::int64_t>(confidence.size()));
  for (std::size_t i = 0; i < noised.size(); ++i) {
    const double gumbel = -portable_log(-portable_log(noised[i]));
    noised[i] = static_cast<double>(confidence[i]) / *options.alg_temp + gumbel;
  }
  return most_confident(noised, count);
}

// A step's positions (indices into the answer) and their tokens; none where it would unmask nothing.
struct Choice {
  Ids positions, tokens;
};

class Loop {
 public:
  Loop(Passes &passes, const DreamOptions &options, std::uint64_t seed, std::int64_t prompt)
      : passes_(passes),
        options_(options),
        draws_(seed),
        prompt_(prompt),
        times_(timesteps(options.steps, options.eps)) {}

  Choice step(std::int64_t step, const Ids &ids, const Ids &open) {
    const float share = transfer_probability(times_, step);
    Choice choice;
    if (options_.alg == "origin") {
      const std::vector<double> uniform = draws_.uniform(static_cast<std::int64_t>(open.size()));
      for (std::size_t i = 0; i < open.size(); ++i) {
        if (uniform[i] < static_cast<double>(share)) choice.positions.push_back(open[i]);
      }
      if (!choice.positions.empty()) choice.tokens = propose_at(choice.positions, ids).tokens;
      return choice;
    }
    const auto count = static_cast<std::int64_t>(static_cast<float>(open.size()) * share);
    if (count == 0) return choice;
    const Proposal proposal = propose_at(open, ids);
    for (const std::int64_t picked : choose(proposal.confidence, count, options_, draws_)) {
      choice.positions.push_back(open[static_cast<std::size_t>(picked)]);
      choice.tokens.push_back(proposal.tokens[static_cast<std::size_t>(picked)]);
    }
    return choice;
  }

 private:
  Proposal propose_at(Ids positions, const Ids &ids) {
    for (std::int64_t &position : positions) position += prompt_;
    return propose(passes_, ids, positions, options_, draws_);
  }

  Passes &passes_;
  const DreamOptions &options_;
  Draws draws_;
  std::int64_t prompt_;
  std::vector<float> times_;
};

}  // namespace

void generate(Denoiser &denoiser, const Ids &prompt, const DreamOptions &options, std::uint64_t seed,
              const EventCallback &callback, Generation &generation) {
  Reporter reporter(callback, generation);
  Stats &stats = reporter.stats();
  options.check();
  check_prompt(prompt, denoiser.vocabulary());
  check_within_vocabulary("mask_token_id", {options.mask_token_id}, denoiser.vocabulary());
  check_within_vocabulary("eos_token_ids", options.eos_token_ids, denoiser.vocabulary());
  denoiser.reset();
  stats.canvases = 1;

  Passes passes(denoiser, stats, options.logits_budget_bytes);
  const auto first = static_cast<std::int64_t>(prompt.size());
  Loop loop(passes, options, seed, first);
  const auto length = static_cast<std::size_t>(options.max_new_tokens);
  Ids ids = prompt;
  ids.resize(prompt.size() + length, options.mask_token_id);
  std::int64_t *answer = ids.data() + first;
  std::vector<std::uint8_t> open(length, 1);
  std::optional<std::int64_t> end;
  for (std::int64_t step = 0; step < options.steps && !end; ++step) {
    const Ids positions = positions_of(open);
    if (positions.empty()) break;
    const Choice choice = loop.step(step, ids, positions);
    if (choice.positions.empty()) continue;
    std::vector<std::uint8_t> accepted(length, 0);
    for (std::size_t i = 0; i < choice.positions.size(); ++i) {
      const auto position = static_cast<std::size_t>(choice.positions[i]);
      answer[position] = choice.tokens[i];
      open[position] = 0;
      accepted[position] = 1;
    }
    ++stats.denoising_steps;
    reporter.draft(0, step + 1, 0, answer, accepted);
    if (options.stop_at_eos) end = answer_end(answer, open, options.eos_token_ids);
  }
  const std::int64_t count = end.value_or(options.max_new_tokens);
  stats.committed_tokens = count;
  for (std::int64_t i = 0; i < count; ++i) {
    if (contains(options.eos_token_ids, answer[i])) stats.finish_reason = FinishReason::eos;
  }
  reporter.committed(0, answer, count);
  reporter.done();
}

}  // namespace edgekit
