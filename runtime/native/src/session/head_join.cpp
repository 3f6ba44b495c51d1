#include "session/head_join.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "error.h"

namespace edgekit {
namespace {

// Below every score. Finite: its product with a weight of 0 is 0.
constexpr double kLeast = -std::numeric_limits<float>::max();

}  // namespace

TileResults::TileResults(std::int64_t rows, std::int64_t hidden, const HeadRequest &request) {
  const std::size_t count = static_cast<std::size_t>(rows);
  largest.resize(count);
  argmax.resize(count);
  sum_others.resize(count);
  sum_z_others.resize(count);
  if (request.gumbel) {
    score.resize(count);
    sample.resize(count);
    sample_z.resize(count);
  }
  if (request.soft) soft.resize(count * static_cast<std::size_t>(hidden));
}

HeadJoin::HeadJoin(std::int64_t rows, std::int64_t hidden, std::int64_t vocabulary, const HeadRequest &request,
                   float *logits)
    : hidden_(hidden),
      vocabulary_(vocabulary),
      k_(std::min(request.top_k, vocabulary)),
      sampled_(request.gumbel.has_value()),
      logits_(logits),
      candidates_(rows, k_) {
  Row row;
  row.top = kLeast;
  row.score = -std::numeric_limits<float>::infinity();
  rows_.assign(static_cast<std::size_t>(rows), row);
  if (request.soft) soft_.resize(static_cast<std::size_t>(rows * hidden));
}

void HeadJoin::add(std::int64_t first, std::int64_t tokens, const TileResults &tile) {
  const auto check = [&](std::int64_t token, const char *what) {
    if (token >= 0 && token < tokens) return;
    fail(EK_ENGINE_FAILED, "an engine gives token ", token, " as ", what, " of a tile of ", tokens,
         " tokens; export the bundle again");
  };
  const auto expect = [](bool right, const char *name, float found, const char *expected) {
    if (right) return;
    fail(EK_ENGINE_FAILED, "an engine gives ", found, " as ", name, " of a tile where ", expected,
         " is expected; export the bundle again, or mend the engine");
  };
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    Row &row = rows_[r];
    check(tile.argmax[r], "the largest");
    // What is NaN in the scores themselves shows in log_z, and has an error of its own.
    if (std::isfinite(tile.largest[r]) && !std::isnan(tile.sum_others[r])) {
      const float others = tile.sum_others[r], weighted = tile.sum_z_others[r];
      expect(std::isfinite(others) && others >= 0, "sum_others", others, "a finite number of at least 0");
      expect(std::isfinite(weighted), "sum_z_others", weighted, "a finite number");
      if (sampled_) {
        expect(!std::isnan(tile.score[r]), "score", tile.score[r], "a number");
        expect(!std::isnan(tile.sample_z[r]), "sample_z", tile.sample_z[r], "a number");
      }
    }
    const double largest = static_cast<double>(tile.largest[r]);
    // A NaN stays, and shows in log_z.
    const double top = std::isnan(largest) ? largest : std::max(row.top, largest);
    const double old = std::exp(row.top - top), own = std::exp(largest - top);
    const bool better = largest > row.top;
    // The lower of both argmaxes becomes one of the others.
    const double fallen = better ? old : own, below = std::min(row.top, largest);
    row.others = row.others * old + static_cast<double>(tile.sum_others[r]) * own + fallen;
    row.z_others = row.z_others * old + static_cast<double>(tile.sum_z_others[r]) * own + below * fallen;
    if (better) row.argmax = tile.argmax[r] + first;
    row.top = top;
    if (!soft_.empty()) {
      float *mixed = soft_.data() + r * static_cast<std::size_t>(hidden_);
      const float *added = tile.soft.data() + r * static_cast<std::size_t>(hidden_);
      const float by_old = static_cast<float>(old), by_own = static_cast<float>(own);
      for (std::int64_t i = 0; i < hidden_; ++i) mixed[i] = mixed[i] * by_old + added[i] * by_own;
    }
    if (sampled_) {
      check(tile.sample[r], "the sample");
      if (tile.score[r] > row.score) {
        row.score = tile.score[r];
        row.sample = tile.sample[r] + first;
        row.sample_z = tile.sample_z[r];
      }
    }
    if (tile.z.empty()) continue;
    const float *z = tile.z.data() + r * static_cast<std::size_t>(tokens);
    const std::int64_t at = static_cast<std::int64_t>(r);
    if (logits_ != nullptr) std::copy_n(z, tokens, logits_ + at * vocabulary_ + first);
    if (k_ > 0) candidates_.add(at, first, z, tokens);
  }
}

HeadResult HeadJoin::result() {
  HeadResult out;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const Row &row = rows_[r];
    const bool none = row.top == kLeast;  // of a row whose scores are all minus infinity
    const double log_sum = std::log1p(row.others), total = 1 + row.others;
    const double log_z = none ? -std::numeric_limits<double>::infinity() : row.top + log_sum;
    // What remains of log Z - sum z p when the largest z is taken out of both.
    const double entropy = log_sum + (row.top * row.others - row.z_others) / total;
    out.argmax.push_back(row.argmax);
    out.others.push_back(static_cast<float>(row.others));
    out.entropy.push_back(entropy < 0 ? 0.0f : static_cast<float>(entropy));  // a NaN stays
    out.log_z.push_back(static_cast<float>(log_z));
    if (sampled_) {
      out.sample.push_back(row.sample);
      out.sample_prob.push_back(static_cast<float>(std::exp(static_cast<double>(row.sample_z) - log_z)));
    }
    if (soft_.empty()) continue;
    float *mixed = soft_.data() + r * static_cast<std::size_t>(hidden_);
    for (std::int64_t i = 0; i < hidden_; ++i) mixed[i] = static_cast<float>(static_cast<double>(mixed[i]) / total);
  }
  out.soft = std::move(soft_);
  if (k_ > 0) {
    out.top_ids.resize(rows_.size() * static_cast<std::size_t>(k_));
    out.top_z.resize(out.top_ids.size());
    candidates_.result(out.top_ids.data(), out.top_z.data());
  }
  return out;
}

std::uint64_t HeadJoin::bytes(std::int64_t rows, std::int64_t hidden, std::int64_t tile_tokens,
                              std::int64_t tiles, bool soft, std::int64_t top_k) {
  const std::uint64_t count = static_cast<std::uint64_t>(rows), k = static_cast<std::uint64_t>(top_k);
  const std::uint64_t sets = static_cast<std::uint64_t>(tiles);
  std::uint64_t total = count * (sizeof(Row) + 3 * (1 + sets) * (sizeof(std::int64_t) + sizeof(float)));
  if (soft) total += (1 + sets) * count * static_cast<std::uint64_t>(hidden) * sizeof(float);
  if (k > 0) total += sets * count * static_cast<std::uint64_t>(tile_tokens) * sizeof(float);
  return total + HeadCandidates::bytes(rows, top_k) + count * k * (sizeof(std::int64_t) + sizeof(float));
}

}  // namespace edgekit
