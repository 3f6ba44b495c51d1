#include "sampling/llada_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "error.h"
#include "kernels/noise.h"
#include "sampling/portable.h"

namespace edgekit {
namespace {

// Values of noise that are in memory at once.
constexpr std::int64_t kNoiseValues = 65536;

// Scores of `count` rows, [count, vocabulary].
struct Scores {
  std::vector<float> values;
  std::int64_t count = 0, vocabulary = 0;

  const float *row(std::int64_t index) const { return values.data() + index * vocabulary; }
};

// A NaN anywhere comes out as NaN, as with numpy.
float highest_of(const float *row, std::int64_t count) {
  float highest = row[0];
  for (std::int64_t i = 0; i < count; ++i) {
    if (std::isnan(row[i])) return row[i];
    highest = std::max(highest, row[i]);
  }
  return highest;
}

// argmax(scores + scale * noise) of each row; `first` is the place of scores' first row among the `positions` rows
// that the noise covers.
std::vector<std::int64_t> argmax_with_noise(const Scores &scores, const GumbelDraw &gumbel, std::int64_t first,
                                            std::int64_t positions) {
  std::vector<float> best(static_cast<std::size_t>(scores.count), -std::numeric_limits<float>::infinity());
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(scores.count), 0);
  const std::int64_t tile = std::max<std::int64_t>(1, kNoiseValues / positions);
  std::vector<float> noise;
  for (std::int64_t start = 0; start < scores.vocabulary; start += tile) {
    const std::int64_t stop = std::min(scores.vocabulary, start + tile), count = (stop - start) * positions;
    noise.resize(static_cast<std::size_t>(count));
    gumbel_noise(gumbel.seed, gumbel.draw, static_cast<std::uint64_t>(start * positions), count, noise.data());
    for (std::int64_t r = 0; r < scores.count; ++r) {
      const float *row = scores.row(r);
      const float *own = noise.data() + first + r;
      for (std::int64_t token = start; token < stop; ++token) {
        const float value = row[token] + gumbel.scale * own[(token - start) * positions];
        if (value > best[static_cast<std::size_t>(r)]) {
          best[static_cast<std::size_t>(r)] = value;
          tokens[static_cast<std::size_t>(r)] = token;
        }
      }
    }
  }
  return tokens;
}

// softmax(row)[token].
float probability(const float *row, std::int64_t count, float highest, std::int64_t token) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(portable_exp(row[i] - highest));
  return static_cast<float>(static_cast<double>(portable_exp(row[token] - highest)) / sum);
}

// Full scores of `rows`, mixed and cut as the options say.
Scores scores_of(Passes &passes, const std::vector<std::int64_t> &ids, const std::vector<std::int64_t> &blank,
                 const std::vector<std::int64_t> &rows, const LladaOptions &options, bool reuse) {
  Scores scores;
  scores.count = static_cast<std::int64_t>(rows.size());
  scores.vocabulary = passes.vocabulary();
  scores.values.resize(static_cast<std::size_t>(scores.count * scores.vocabulary));
  HeadRequest request;
  request.all_rows = false;
  request.rows = rows;
  request.logits = scores.values.data();
  if (reuse)
    passes.again(request);
  else
    passes.run(ids, request);
  if (options.cfg_scale > 0) {
    std::vector<float> base(scores.values.size());
    request.logits = base.data();
    passes.run(blank, request);
    const float scale = static_cast<float>(options.cfg_scale + 1);
    for (std::size_t i = 0; i < base.size(); ++i) scores.values[i] = base[i] + scale * (scores.values[i] - base[i]);
  }
  if (options.logits_eos_inf) {
    for (std::int64_t r = 0; r < scores.count; ++r) {
      for (const std::int64_t token : options.eos_token_ids)
        scores.values[static_cast<std::size_t>(r * scores.vocabulary + token)] =
            -std::numeric_limits<float>::infinity();
    }
  }
  return scores;
}

}  // namespace

Proposal propose_from_scores(Passes &passes, const std::vector<std::int64_t> &ids, std::int64_t prompt,
                             const std::vector<std::int64_t> &rows, const LladaOptions &options,
                             const std::optional<GumbelDraw> &gumbel) {
  std::vector<std::int64_t> blank = ids;
  std::fill(blank.begin(), blank.begin() + prompt, options.mask_token_id);
  const auto count = static_cast<std::int64_t>(rows.size());
  Proposal proposal;
  for (std::int64_t start = 0; start < count; start += passes.rows_at_once()) {
    const std::int64_t stop = std::min(count, start + passes.rows_at_once());
    // Both passes of the guidance replace each other's hidden states, so only plain chunks can reuse them.
    const bool reuse = start > 0 && options.cfg_scale == 0;
    const Scores scores =
        scores_of(passes, ids, blank, {rows.begin() + start, rows.begin() + stop}, options, reuse);
    std::vector<float> highest;
    for (std::int64_t r = 0; r < scores.count; ++r) highest.push_back(highest_of(scores.row(r), scores.vocabulary));
    const auto bad = std::count_if(highest.begin(), highest.end(), [](float value) { return !std::isfinite(value); });
    if (bad != 0)
      fail(EK_NOT_FINITE, "cfg_scale and logits_eos_inf leave ", bad, " of ", scores.count,
           " positions without a finite score; use a smaller cfg_scale or fewer eos_token_ids");
    std::vector<std::int64_t> tokens;
    if (gumbel) {
      tokens = argmax_with_noise(scores, *gumbel, start, count);
    } else {
      for (std::int64_t r = 0; r < scores.count; ++r)
        tokens.push_back(std::max_element(scores.row(r), scores.row(r) + scores.vocabulary) - scores.row(r));
    }
    for (std::int64_t r = 0; r < scores.count; ++r) {
      const auto i = static_cast<std::size_t>(r);
      proposal.confidence.push_back(probability(scores.row(r), scores.vocabulary, highest[i], tokens[i]));
    }
    proposal.tokens.insert(proposal.tokens.end(), tokens.begin(), tokens.end());
  }
  return proposal;
}

}  // namespace edgekit
