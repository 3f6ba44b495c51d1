// The statistics of tiles (session/head_join.h), a block of tokens at a time. Two differences keep more digits: a block is
// joined as soon as it is known, relative to the largest z so far, and (z - max) exp(z - max) is summed where tiles sum
// z exp(z - max), which cancels against log Z in the entropy. The argmax's z is made -infinity before the exponentials
// of its block are summed, so that the sums are those of the others.
#include "kernels/head.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "cpu.h"
#include "error.h"
#include "flash_file.h"
#include "kernels/gemm.h"
#include "kernels/head_candidates.h"
#include "kernels/head_kernels.h"
#include "kernels/noise.h"

namespace edgekit {
namespace {

// Best first.
const HeadKernels *const kSets[] = {
#if defined(__x86_64__) || defined(_M_X64)
    &kHeadAvx512, &kHeadAvx2,
#elif defined(__aarch64__) || defined(_M_ARM64)
    &kHeadNeon,
#endif
    &kHeadScalar,
};

const HeadKernels *find(const char *name) {
  for (const HeadKernels *set : kSets) {
    if (can_use_instruction_set(set->name) && (name == nullptr || std::strcmp(name, set->name) == 0)) return set;
  }
  fail(EK_INVALID_ARGUMENT, "this process cannot use the instruction set \"", name, "\"");
}

std::atomic<const HeadKernels *> &chosen() {
  static std::atomic<const HeadKernels *> set{find(nullptr)};
  return set;
}

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Tokens are mixed with one digit where no weight exceeds this share of all weights so far (see table_mix). A weight w
// then has an error of variance at most w * most / 127, most being the largest of its stretch; summed up that is at most
// sqrt(share / 127) = 0.4 % of a table row's size, against the 0.9 % that rounding a table to 8 bits leaves in a row.
constexpr double kFineShare = 1.0 / 512;

// The smallest weights of a row are taken as 0, so that table_mix leaves out tokens which no row weighs. Together they are
// at most this share of all weights, so that no entry of the soft embedding moves by more than this share of the table's
// largest: half of what rounding the largest weight to two digits leaves, 1 / 65278 (see table_mix), or, where products
// are in floats, what a sum of 256 products in float32 leaves, sqrt(256) * 2^-24. A token has the same part in it as any
// other, a stretch of tokens as many parts as tokens, and weights are compared with the sum of those so far, which only
// grows: the bound holds in whatever order and cut tokens come, and a row's weights decide for that row alone.
constexpr double kDroppedCodes = 1.0 / (1 << 17), kDroppedFloats = 1.0 / (1 << 20);
constexpr std::int64_t kDropTokens = 1024;

// Scores of a block: small enough for the second- and third-level caches, and enough for a product.
constexpr std::int64_t kBlockScores = std::int64_t{1} << 19;
constexpr std::int64_t kFewestTokens = 256;
constexpr std::int64_t kMostTokens = 4096;
// Tokens of one task that adds noise, and rows of one task that sums.
constexpr std::int64_t kTaskTokens = 64;
constexpr std::int64_t kTaskRows = 4;

constexpr std::int64_t round_up(std::int64_t x, std::int64_t unit) { return (x + unit - 1) / unit * unit; }

// How the memory of a pass is cut; everything begins at a multiple of 64 bytes. The cut into blocks depends on
// nothing but the number of rows, so that results do not either.
struct Layout {
  std::int64_t rows, padded_rows, hidden;
  std::int64_t block_tokens;
  std::int64_t stride;        // floats between the scores of two rows
  std::int64_t noise_tokens;  // noise made at a time by a task
  std::int64_t noise_floats;  // of one thread
  std::int64_t best_floats;   // of one task
  std::size_t scores, quantized, scratch, noise, best, total;

  Layout(int threads, std::int64_t row_count, std::int64_t hidden_size, const HeadOptions &options)
      : rows(row_count), padded_rows(round_up(row_count, kHeadLanes)), hidden(hidden_size) {
    block_tokens = kBlockScores / padded_rows / kTaskTokens * kTaskTokens;
    block_tokens = std::clamp(block_tokens, kFewestTokens, kMostTokens);
    stride = block_tokens + kHeadLanes;  // not a power of two: a column's scores would share a few cache lines
    noise_tokens = rows < 4 * kHeadLanes ? kTaskTokens : kHeadLanes;
    noise_floats = round_up(noise_tokens * rows + kHeadLanes, kHeadLanes);
    best_floats = 3 * padded_rows;
    scores = 0;
    const auto after = [](std::size_t offset, std::size_t bytes) { return offset + (bytes + 63) / 64 * 64; };
    const auto floats = [](std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float); };
    quantized = after(scores, floats(padded_rows * stride));
    scratch = after(quantized, quantized_bytes(rows, hidden));
    noise = after(scratch, gemm_scratch_bytes(threads));
    const bool sample = options.gumbel != nullptr;
    best = after(noise, sample ? floats(threads * noise_floats) : 0);
    total = after(best, sample ? floats(block_tokens / kTaskTokens * best_floats) : 0);
  }
};

// Rows first..first+count of a tile.
Table part_of(const Table &tile, std::int64_t first, std::int64_t count) {
  Table part = tile;
  part.rows = count;
  part.codes += first * tile.columns * (tile.bits / 8);
  if (part.scales != nullptr) part.scales += first;
  return part;
}

struct Row {
  float top = kNothing;
  std::int64_t argmax = 0;
  // Over the tokens but the argmax, whose own exp(z - top) is 1: next to it small ones would be lost.
  double others = 0.0;          // sum of exp(z - top)
  double others_product = 0.0;  // sum of (z - top) exp(z - top)
  float score = kNothing;       // z + noise of the sample
  std::int64_t sample = 0;
  float sample_z = 0.0f;
  bool weighs = false;  // in this block: a weight is not taken as 0

  double sum() const { return 1.0 + others; }
};

}  // namespace

void head_use_instruction_set(const char *name) { chosen().store(find(name), std::memory_order_relaxed); }

struct HeadPass::State {
  State(ThreadPool &threads, const float *input, std::int64_t row_count, std::int64_t hidden, std::int64_t tokens,
        int table_bits, const HeadOptions &wanted)
      : pool(threads),
        x(input),
        vocabulary(tokens),
        bits(table_bits),
        options(wanted),
        layout(threads.size(), row_count, hidden, wanted),
        memory(layout.total),
        rows(static_cast<std::size_t>(row_count)),
        candidates(row_count, std::min(wanted.top_k, tokens)) {
    if (wanted.gumbel != nullptr) {
      gumbel = *wanted.gumbel;
      options.gumbel = &gumbel;
    }
    if (wanted.soft) {
      soft.resize(static_cast<std::size_t>(row_count * hidden));
      fine_above.resize(static_cast<std::size_t>(row_count));
    }
    if (bits == 8) codes = quantize_rows(pool, x, hidden, row_count, hidden, memory.data() + layout.quantized);
  }

  float *scores() const { return reinterpret_cast<float *>(memory.data() + layout.scores); }
  void *scratch() const { return memory.data() + layout.scratch; }
  float *noise(int thread) const {
    return reinterpret_cast<float *>(memory.data() + layout.noise) + thread * layout.noise_floats;
  }
  NoisyBest best(std::int64_t task) const {
    float *at = reinterpret_cast<float *>(memory.data() + layout.best) + task * layout.best_floats;
    return {at, at + layout.padded_rows, at + 2 * layout.padded_rows};
  }

  void score_block(const Table &block) const;
  void scale(float *z, std::int64_t count) const;
  void sample_tokens(std::int64_t first, std::int64_t count, std::int64_t task, int thread) const;
  void join_row(std::int64_t first, std::int64_t count, std::int64_t row);
  bool drop(const Row &row, float *e, std::int64_t count) const;
  void add_block(std::int64_t first, const Table &block);

  ThreadPool &pool;
  const float *x;
  std::int64_t vocabulary;
  int bits;
  HeadOptions options;
  GumbelDraw gumbel;
  Layout layout;
  AlignedMemory memory;
  QuantizedRows codes;
  std::vector<Row> rows;
  HeadCandidates candidates;
  std::vector<float> soft;
  std::vector<float> fine_above;  // for table_mix, per row
  std::int64_t next = 0;  // the token behind the last tile
  const HeadKernels &kernels = *chosen().load(std::memory_order_relaxed);
};

void HeadPass::State::score_block(const Table &block) const {
  if (bits == 8) {
    table_scores(pool, block, codes, scores(), layout.stride, scratch());
  } else {
    table_scores_float(pool, block, x, layout.hidden, layout.rows, scores(), layout.stride, scratch());
  }
}

// Makes z of `count` logits; what follows up to a whole number of vectors becomes -infinity, which no statistic sees.
void HeadPass::State::scale(float *z, std::int64_t count) const {
  const std::int64_t padded = round_up(count, kHeadLanes);
  std::fill(z + count, z + padded, 0.0f);
  kernels.scale({options.softcap, options.temperature}, z, padded);
  std::fill(z + count, z + padded, kNothing);
}

// The `task`-th tokens of a block whose first token is `first`.
void HeadPass::State::sample_tokens(std::int64_t first, std::int64_t count, std::int64_t task, int thread) const {
  const std::int64_t begin = task * kTaskTokens, end = std::min(count, begin + kTaskTokens);
  for (std::int64_t row = 0; row < layout.rows; ++row) scale(scores() + row * layout.stride + begin, end - begin);
  const NoisyBest found = best(task);
  std::fill_n(found.score, layout.padded_rows, kNothing);
  std::fill_n(found.token, layout.padded_rows, static_cast<float>(begin));
  std::fill_n(found.z, layout.padded_rows, kNothing);
  float *values = noise(thread);
  for (std::int64_t token = begin; token < end; token += layout.noise_tokens) {
    const std::int64_t tokens = std::min(layout.noise_tokens, end - token);
    gumbel_noise(gumbel.seed, gumbel.draw, static_cast<std::uint64_t>((first + token) * layout.rows),
                 tokens * layout.rows, values);
    const std::int64_t padded = round_up(tokens, kHeadLanes);
    kernels.sample({scores() + token, layout.stride, values, gumbel.scale, layout.rows, padded}, token, found);
  }
}

// Joins the scores of a block to one row's statistics.
void HeadPass::State::join_row(std::int64_t first, std::int64_t count, std::int64_t index) {
  Row &row = rows[static_cast<std::size_t>(index)];
  float *z = scores() + index * layout.stride;
  if (options.gumbel == nullptr) {
    scale(z, count);
  } else {
    for (std::int64_t task = 0; task * kTaskTokens < count; ++task) {
      const NoisyBest found = best(task);
      if (found.score[index] > row.score) {
        row.score = found.score[index];
        row.sample = first + static_cast<std::int64_t>(found.token[index]);
        row.sample_z = found.z[index];
      }
    }
  }
  if (options.logits != nullptr) std::copy_n(z, count, options.logits + index * vocabulary + first);
  candidates.add(index, first, z, count);

  const std::int64_t padded = round_up(count, kHeadLanes);
  const float top = kernels.largest(z, padded);
  float *argmax = nullptr;  // of all tokens so far, if it is in this block
  if (top > row.top) {
    argmax = std::find(z, z + count, top);
    row.argmax = first + (argmax - z);
    if (row.top != kNothing) {
      const double fall = static_cast<double>(row.top) - static_cast<double>(top), factor = std::exp(fall);
      row.others_product = (row.others_product + row.sum() * fall) * factor;
      row.others = row.sum() * factor;
      if (options.soft) {
        float *mixed = soft.data() + index * layout.hidden;
        const float by = static_cast<float>(factor);
        for (std::int64_t i = 0; i < layout.hidden; ++i) mixed[i] *= by;
      }
    }
    row.top = top;
    *argmax = kNothing;
  }
  double sums[2];
  row.weighs = kernels.exponentials(z, padded, row.top, options.soft, sums);
  row.others += sums[0];
  row.others_product += sums[1];
  if (options.soft) {
    if (argmax != nullptr) {
      *argmax = 1.0f;  // its e
      row.weighs = true;
    }
    if (row.weighs) row.weighs = drop(row, z, count);
    fine_above[static_cast<std::size_t>(index)] = static_cast<float>(kFineShare * row.sum());
  }
}

// Takes the smallest of a row's e of a block as 0; returns whether one is left.
bool HeadPass::State::drop(const Row &row, float *e, std::int64_t count) const {
  const double share = bits == 8 ? kDroppedCodes : kDroppedFloats;
  const float each = static_cast<float>(share * row.sum() / static_cast<double>(vocabulary));
  bool left = false;
  for (std::int64_t done = 0; done < count; done += kDropTokens) {
    const std::int64_t tokens = std::min(kDropTokens, count - done);
    left |= kernels.drop(e + done, round_up(tokens, kHeadLanes), each, static_cast<float>(tokens) * each);
  }
  return left;
}

void HeadPass::State::add_block(std::int64_t first, const Table &block) {
  score_block(block);
  if (options.gumbel != nullptr) {
    pool.run((block.rows + kTaskTokens - 1) / kTaskTokens, [&](std::int64_t task, int thread) {
      sample_tokens(first, block.rows, task, thread);
    });
  }
  pool.run((layout.rows + kTaskRows - 1) / kTaskRows, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(layout.rows, (task + 1) * kTaskRows);
    for (std::int64_t row = task * kTaskRows; row < end; ++row) join_row(first, block.rows, row);
  });
  const auto weighs = [](const Row &row) { return row.weighs; };
  if (options.soft && std::any_of(rows.begin(), rows.end(), weighs)) {
    table_mix(pool, block, scores(), layout.stride, layout.rows, fine_above.data(), soft.data(),
              layout.hidden, scratch());
  }
}

HeadPass::HeadPass(ThreadPool &pool, const float *x, std::int64_t rows, std::int64_t hidden, std::int64_t vocabulary,
                   int bits, const HeadOptions &options) {
  if (rows < 1 || hidden < 1 || vocabulary < 1 || (bits != 8 && bits != 16)) {
    fail(EK_INVALID_ARGUMENT, "a head of ", rows, " rows x ", hidden, ", ", vocabulary, " tokens, ", bits,
         " bits: all must be positive and the bits 8 or 16");
  }
  if (!(options.temperature > 0.0f) || !(options.softcap >= 0.0f) || options.top_k < 0) {
    fail(EK_INVALID_ARGUMENT, "temperature ", options.temperature, ", softcap ", options.softcap, ", top_k ",
         options.top_k, ": the temperature must be positive and the others not negative");
  }
  state_ = std::make_unique<State>(pool, x, rows, hidden, vocabulary, bits, options);
}

HeadPass::~HeadPass() = default;

void HeadPass::add(std::int64_t first, const Table &tile) {
  State &state = *state_;
  if (tile.columns != state.layout.hidden || tile.bits != state.bits) {
    fail(EK_INVALID_ARGUMENT, "a tile with ", tile.columns, " columns of ", tile.bits, " bits for a head of ",
         state.layout.hidden, " and ", state.bits);
  }
  if (first < state.next || tile.rows < 0 || tile.rows > state.vocabulary - first) {
    fail(EK_INVALID_ARGUMENT, "tokens ", first, "..", first + tile.rows, " cannot follow token ", state.next,
         " of a vocabulary of ", state.vocabulary);
  }
  state.next = first + tile.rows;
  for (std::int64_t done = 0; done < tile.rows; done += state.layout.block_tokens) {
    const std::int64_t count = std::min(state.layout.block_tokens, tile.rows - done);
    state.add_block(first + done, part_of(tile, done, count));
  }
}

HeadResult HeadPass::result() {
  State &state = *state_;
  HeadResult out;
  for (const Row &row : state.rows) {
    const double log_sum = std::log1p(row.others), log_z = static_cast<double>(row.top) + log_sum;
    const double entropy = log_sum - row.others_product / row.sum();
    out.argmax.push_back(row.argmax);
    out.others.push_back(static_cast<float>(row.others));
    out.entropy.push_back(entropy < 0.0 ? 0.0f : static_cast<float>(entropy));  // a NaN stays
    out.log_z.push_back(static_cast<float>(log_z));
    if (state.options.gumbel == nullptr) continue;
    out.sample.push_back(row.sample);
    out.sample_prob.push_back(static_cast<float>(std::exp(static_cast<double>(row.sample_z) - log_z)));
  }
  if (state.options.soft) {
    state.pool.run(state.layout.rows, [&](std::int64_t row, int) {
      float *mixed = state.soft.data() + row * state.layout.hidden;
      const double sum = state.rows[static_cast<std::size_t>(row)].sum();
      for (std::int64_t i = 0; i < state.layout.hidden; ++i) {
        mixed[i] = static_cast<float>(static_cast<double>(mixed[i]) / sum);
      }
    });
    out.soft = std::move(state.soft);
  }
  if (state.options.top_k > 0) {
    const std::int64_t k = std::min(state.options.top_k, state.vocabulary);
    out.top_ids.resize(static_cast<std::size_t>(state.layout.rows * k));
    out.top_z.resize(out.top_ids.size());
    state.candidates.result(out.top_ids.data(), out.top_z.data());
  }
  return out;
}

std::size_t HeadPass::bytes(int threads, std::int64_t rows, std::int64_t hidden, std::int64_t,
                            const HeadOptions &options) {
  const std::size_t count = static_cast<std::size_t>(rows), k = static_cast<std::size_t>(options.top_k);
  std::size_t results = count * (2 * sizeof(std::int64_t) + 4 * sizeof(float));
  results += count * k * (sizeof(std::int64_t) + sizeof(float));
  if (options.soft) results += count * static_cast<std::size_t>(hidden + 1) * sizeof(float);
  return Layout(threads, rows, hidden, options).total + HeadCandidates::bytes(rows, options.top_k) +
         count * sizeof(Row) + results;
}

}  // namespace edgekit
