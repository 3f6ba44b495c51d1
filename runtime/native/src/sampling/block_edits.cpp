#include "sampling/block_edits.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <utility>

#include "sampling/schedule.h"

namespace edgekit {
namespace {

using Ids = std::vector<std::int64_t>;
using Flags = std::vector<std::uint8_t>;

constexpr int kEscapes = 5;  // tries to leave a circle, as the authors' script has

std::int64_t count(const Flags &flags) { return std::count_if(flags.begin(), flags.end(), [](auto f) { return f != 0; }); }

std::int64_t count_both(const Flags &a, const Flags &b) {
  std::int64_t both = 0;
  for (std::size_t i = 0; i < a.size(); ++i) both += a[i] != 0 && b[i] != 0;
  return both;
}

// The scores of a step, by position of the block.
struct Candidates {
  Candidates(const HeadResult &answer, std::int64_t given, const BlockOptions &options) : answer(answer), given(given) {
    const bool drawn = !answer.sample.empty();
    for (std::size_t r = 0; r < answer.argmax.size(); ++r) {
      best.push_back(answer.argmax[r]);
      best_confidence.push_back(1 / (1 + static_cast<double>(answer.others[r])));
      chosen.push_back(drawn ? answer.sample[r] : best.back());
      confidence.push_back(drawn ? static_cast<double>(answer.sample_prob[r]) : best_confidence.back());
    }
    // What is drawn replaces tokens in 2.1; in 2.2 the best does.
    edit = options.delete_token_id ? &best : &chosen;
    edit_confidence = options.delete_token_id ? &best_confidence : &confidence;
  }

  std::size_t row(std::size_t position) const { return position - static_cast<std::size_t>(given); }

  // The best token of a row that is none of these.
  std::int64_t without(std::size_t position, std::initializer_list<std::int64_t> forbidden) const {
    const std::size_t width = answer.top_ids.size() / answer.argmax.size();
    for (std::size_t k = 0; k < width; ++k) {
      const std::int64_t token = answer.top_ids[row(position) * width + k];
      if (std::find(forbidden.begin(), forbidden.end(), token) == forbidden.end()) return token;
    }
    return best[row(position)];  // a vocabulary of the forbidden ones alone
  }

  const HeadResult &answer;
  std::int64_t given;
  Ids best, chosen;
  std::vector<double> best_confidence, confidence;
  const Ids *edit = nullptr;
  const std::vector<double> *edit_confidence = nullptr;
};

// Open positions that a step commits: those above the threshold where they are `need`, else the `need` most confident.
Flags committed(const Candidates &found, const Flags &open, std::int64_t need, const BlockOptions &options) {
  std::vector<std::size_t> positions;
  std::vector<double> confidence;
  Flags out(open.size(), 0);
  std::int64_t high = 0;
  for (std::size_t i = static_cast<std::size_t>(found.given); i < open.size(); ++i) {
    if (open[i] == 0) continue;
    positions.push_back(i);
    confidence.push_back(found.confidence[found.row(i)]);
    out[i] = options.threshold && confidence.back() > *options.threshold;
    high += out[i];
  }
  if (high >= need) return out;
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  for (const std::int64_t index : most_confident(std::move(confidence), need)) out[positions[static_cast<std::size_t>(index)]] = 1;
  return out;
}

}  // namespace

BlockEdits::BlockEdits(const Flags &open) : original_(open), initial_(count(open)) {}

std::int64_t BlockEdits::post_now(const Flags &open) const { return count_both(original_, open) == 0 ? post_ + 1 : 0; }

bool BlockEdits::done(const Flags &open, std::int64_t step, const BlockOptions &options) const {
  if (initial_ == 0 || step >= options.max_block_steps) return true;
  return count(open) == 0 && post_now(open) > options.max_post_steps;
}

BlockEdits::Outcome BlockEdits::apply(const HeadResult &answer, std::int64_t given, std::int64_t step,
                                      const BlockOptions &options, BlockTokens &block) {
  const Candidates found(answer, given, options);
  const bool indel = options.delete_token_id.has_value();
  const Ids old = block.tokens;
  Ids tokens = old;
  const std::int64_t masks = count(block.open), original_open = count_both(original_, block.open);
  const std::int64_t post = post_now(block.open);

  std::int64_t need = std::min<std::int64_t>(1, masks);
  if (indel) need = step < options.steps ? transfer_count(initial_, options.steps, step) + masks - original_open : masks;
  Flags filled = committed(found, block.open, need, options);
  const bool capped = step + 1 == options.max_block_steps;
  const bool last = indel && (options.max_post_steps > 0
                                  ? post >= options.max_post_steps
                                  : original_open > 0 && count_both(original_, filled) == original_open);
  if (last || capped) filled = block.open;

  Outcome out;
  out.written = filled;
  for (std::size_t i = static_cast<std::size_t>(given); i < tokens.size(); ++i) {
    const std::size_t row = found.row(i);
    const bool edited = block.open[i] == 0 && (*found.edit_confidence)[row] > *options.editing_threshold &&
                        (*found.edit)[row] != old[i];
    if (filled[i] == 0 && !edited) continue;
    out.written[i] = 1;
    tokens[i] = filled[i] != 0 ? found.chosen[row] : (*found.edit)[row];
    const bool moves = indel && (tokens[i] == *options.delete_token_id || tokens[i] == *options.insert_token_id);
    if (moves && (last || capped)) tokens[i] = found.without(i, {*options.delete_token_id, *options.insert_token_id});
  }

  if (indel) {
    const auto known = [&] { return std::find(seen_.begin(), seen_.end(), tokens) != seen_.end(); };
    for (int tries = 0; tries < kEscapes && !last && count(out.written) > 0 && known(); ++tries) {
      std::optional<std::size_t> weakest;
      for (std::size_t i = static_cast<std::size_t>(given); i < tokens.size(); ++i) {
        if (tokens[i] == old[i]) continue;
        if (!weakest || found.best_confidence[found.row(i)] < found.best_confidence[found.row(*weakest)]) weakest = i;
      }
      if (!weakest) break;
      tokens[*weakest] = found.without(*weakest, {tokens[*weakest]});
    }
    seen_.push_back(tokens);
  }

  Flags open = block.open;
  for (std::size_t i = 0; i < open.size(); ++i) open[i] = open[i] != 0 && filled[i] == 0;
  if (indel) {
    BlockTokens moved;
    Flags original;
    const auto put = [&](std::int64_t token, bool is_open, bool was_original) {
      moved.tokens.push_back(token);
      moved.open.push_back(is_open);
      original.push_back(was_original);
    };
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool written = i >= static_cast<std::size_t>(given) && out.written[i] != 0;
      if (written && tokens[i] == *options.delete_token_id) continue;
      const bool inserts = written && tokens[i] == *options.insert_token_id;
      if (inserts) put(options.mask_token_id, true, false);
      // The token that the new position stands before; an open one stays open.
      put(inserts ? old[i] : tokens[i], inserts ? block.open[i] != 0 : open[i] != 0, original_[i] != 0);
    }
    moved.tokens.resize(tokens.size(), options.mask_token_id);
    moved.open.resize(tokens.size(), 1);
    original.resize(tokens.size(), 0);
    tokens = std::move(moved.tokens);
    open = std::move(moved.open);
    original_ = std::move(original);
  }
  post_ = post;
  block.tokens = std::move(tokens);
  block.open = std::move(open);
  out.done = block.tokens == old && count(block.open) == 0;
  return out;
}

template <typename Archive, typename Self>
void BlockEdits::fields(Archive &archive, Self &self, std::int64_t length, std::int64_t) {
  archive.flags("positions that were open", self.original_, {length, length});
  archive.integer("a number of open positions", self.initial_, {0, length});
  archive.integer("a number of steps that edit", self.post_, {0, kMostTokens});
}

void BlockEdits::write(StateWriter &state, std::int64_t length, std::int64_t vocabulary) const {
  fields(state, *this, length, vocabulary);
  state.integer("a number of blocks", static_cast<std::int64_t>(seen_.size()), {0, kMostTokens});
  for (const Ids &each : seen_) state.integers("a block", each, {length, length}, {0, vocabulary - 1});
}

void BlockEdits::read(StateReader &state, std::int64_t length, std::int64_t vocabulary) {
  fields(state, *this, length, vocabulary);
  std::int64_t blocks = 0;
  state.integer("a number of blocks", blocks, {0, kMostTokens});
  seen_.clear();
  for (std::int64_t i = 0; i < blocks; ++i)
    state.integers("a block", seen_.emplace_back(), {length, length}, {0, vocabulary - 1});
}

}  // namespace edgekit
