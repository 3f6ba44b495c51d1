// Seconds of the vocabulary head and its parts, for tools/bench/native_head.py.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <memory>

#include "edgekit.h"
#include "flash_file.h"
#include "kernels/gemm.h"
#include "kernels/head.h"
#include "kernels/noise.h"
#include "thread_pool.h"

namespace {

using Clock = std::chrono::steady_clock;

// What is measured: random activations, and as much of a table as leaves the caches cold, used over and over.
class HeadBench {
 public:
  HeadBench(int threads, std::int64_t rows, std::int64_t hidden, std::int64_t vocabulary)
      : pool_(threads),
        rows_(rows),
        hidden_(hidden),
        vocabulary_(vocabulary),
        distinct_(std::min(vocabulary, std::max(kTileRows, (std::int64_t{128} << 20) / hidden / 64 * 64))),
        codes_(static_cast<std::size_t>(distinct_ * hidden)),
        scales_(static_cast<std::size_t>(distinct_) * sizeof(float)),
        x_(static_cast<std::size_t>(rows * hidden) * sizeof(float)),
        surest_(x_.size()),
        mixed_(x_.size()),
        rounded_(edgekit::quantized_bytes(rows, hidden)),
        scratch_(edgekit::gemm_scratch_bytes(threads)),
        z_(static_cast<std::size_t>(rows * kStride) * sizeof(float)) {
    std::uint64_t state = 1;
    const auto next = [&state] {
      state = state * 6364136223846793005u + 1442695040888963407u;
      return static_cast<std::uint32_t>(state >> 33);
    };
    for (std::size_t i = 0; i < codes_.size(); ++i) codes_.data()[i] = static_cast<std::uint8_t>(1 + next() % 255);
    // Logits with a spread of about 3, as those of a model that is not yet sure.
    const float scale = 3.0f / 74.0f / std::sqrt(static_cast<float>(hidden));
    std::fill_n(scales(), distinct_, scale);
    for (std::int64_t i = 0; i < rows * hidden; ++i) x()[i] = static_cast<float>(next() % 2001) * 0.00173f - 1.73f;
    for (std::int64_t row = 0; row < rows; ++row) {
      // The embedding of a token, in the size of the others. Of vocabularies made by merges the n-th token comes about as
      // often as 1 / n says; this table begins again behind so many.
      const double share = static_cast<double>(next()) / 2147483648.0;
      const auto token = static_cast<std::int64_t>(std::pow(static_cast<double>(distinct_ - kTileRows + 1), share)) - 1;
      const std::uint8_t *codes = codes_.data() + token * hidden;
      for (std::int64_t i = 0; i < hidden; ++i) surest()[row * hidden + i] = static_cast<float>(codes[i] - 128) / 74.0f;
    }
  }

  double scores() {
    return seconds([&] {
      const auto rounded = edgekit::quantize_rows(pool_, x(), hidden_, rows_, hidden_, rounded_.data());
      for_blocks(kBlockRows, [&](std::int64_t, const edgekit::Table &block) {
        edgekit::table_scores(pool_, block, rounded, z(), kStride, scratch_.data());
      });
    });
  }

  // The product with an 8-bit matrix of the same shape, whose panels are stored ready for it.
  double product() {
    edgekit::Matrix matrix;
    matrix.columns = hidden_;
    matrix.bits = 8;
    matrix.scales = scales();
    return seconds([&] {
      const auto rounded = edgekit::quantize_rows(pool_, x(), hidden_, rows_, hidden_, rounded_.data());
      for_blocks(kBlockRows, [&](std::int64_t, const edgekit::Table &block) {
        matrix.rows = block.rows / 64 * 64;
        matrix.codes = block.codes;
        edgekit::linear(pool_, matrix, rounded, z(), kStride, {}, scratch_.data());
      });
    });
  }

  double mix(bool fine) {
    edgekit::AlignedMemory soft(static_cast<std::size_t>(rows_ * hidden_) * sizeof(float));
    const std::vector<float> above(static_cast<std::size_t>(rows_), fine ? -1.0f : 1.0f);
    for (std::int64_t i = 0; i < rows_ * kStride; ++i) z()[i] = static_cast<float>(i % 997) * 0.001f;
    return seconds([&] {
      for_blocks(kBlockRows, [&](std::int64_t, const edgekit::Table &block) {
        edgekit::table_mix(pool_, block, z(), kStride, rows_, above.data(), reinterpret_cast<float *>(soft.data()),
                           hidden_, scratch_.data());
      });
    });
  }

  double noise() {
    return seconds([&] {
      pool_.run(vocabulary_ / 16, [&](std::int64_t task, int thread) {
        const std::int64_t count = 16 * rows_;  // as the head makes it; a thread's part of z holds it
        edgekit::gumbel_noise(1, 2, static_cast<std::uint64_t>(task * count), count, z() + thread * count);
      });
    });
  }

  // A share of the rows is as sure of a token as trained models are, whose score is at the softcap; the others of none.
  double pass(bool gumbel, bool soft, float softcap, std::int64_t top_k, double sure, float temperature) {
    const auto sure_rows = static_cast<std::int64_t>(sure * static_cast<double>(rows_));
    const float *from = x();
    if (sure_rows > 0) {
      std::copy_n(surest(), sure_rows * hidden_, mixed());
      std::copy_n(x() + sure_rows * hidden_, (rows_ - sure_rows) * hidden_, mixed() + sure_rows * hidden_);
      from = mixed();
    }
    const edgekit::GumbelDraw draw{1, 2, 1.0f};
    edgekit::HeadOptions options;
    options.gumbel = gumbel ? &draw : nullptr;
    options.soft = soft;
    options.softcap = softcap;
    options.top_k = top_k;
    options.temperature = temperature;
    return seconds([&] {
      edgekit::HeadPass pass(pool_, from, rows_, hidden_, vocabulary_, 8, options);
      for_blocks(kTileRows, [&](std::int64_t first, const edgekit::Table &tile) { pass.add(first, tile); });
      pass.result();
    });
  }

 private:
  static constexpr std::int64_t kTileRows = 8192;
  static constexpr std::int64_t kBlockRows = 2048;  // what the head takes at a time for 256 rows
  static constexpr std::int64_t kStride = kBlockRows + 16;

  float *scales() const { return reinterpret_cast<float *>(scales_.data()); }
  float *x() const { return reinterpret_cast<float *>(x_.data()); }
  float *surest() const { return reinterpret_cast<float *>(surest_.data()); }
  float *mixed() const { return reinterpret_cast<float *>(mixed_.data()); }
  float *z() const { return reinterpret_cast<float *>(z_.data()); }

  template <typename Body>
  static double seconds(const Body &body) {
    const auto start = Clock::now();
    body();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  // The vocabulary in blocks of `size` tokens, out of the rows that exist.
  template <typename Body>
  void for_blocks(std::int64_t size, const Body &body) const {
    for (std::int64_t first = 0; first < vocabulary_; first += size) {
      edgekit::Table block;
      block.rows = std::min(size, vocabulary_ - first);
      block.columns = hidden_;
      block.bits = 8;
      const std::int64_t at = first % (distinct_ - block.rows + 1) / 64 * 64;
      block.codes = codes_.data() + at * hidden_;
      block.scales = scales() + at;
      body(first, block);
    }
  }

  edgekit::ThreadPool pool_;
  std::int64_t rows_, hidden_, vocabulary_, distinct_;
  edgekit::AlignedMemory codes_, scales_, x_, surest_, mixed_, rounded_, scratch_, z_;
};

}  // namespace

extern "C" {

// Null where there is no memory for it.
EK_API void *ekt_head_bench_open(int64_t threads, int64_t rows, int64_t hidden, int64_t vocabulary) {
  try {
    return std::make_unique<HeadBench>(static_cast<int>(threads), rows, hidden, vocabulary).release();
  } catch (const std::exception &) {
    return nullptr;
  }
}

EK_API void ekt_head_bench_close(void *bench) { delete static_cast<HeadBench *>(bench); }

EK_API double ekt_head_bench_product(void *bench) { return static_cast<HeadBench *>(bench)->product(); }
EK_API double ekt_head_bench_scores(void *bench) { return static_cast<HeadBench *>(bench)->scores(); }
EK_API double ekt_head_bench_mix(void *bench) { return static_cast<HeadBench *>(bench)->mix(true); }

EK_API double ekt_head_bench_coarse_mix(void *bench) { return static_cast<HeadBench *>(bench)->mix(false); }
EK_API double ekt_head_bench_noise(void *bench) { return static_cast<HeadBench *>(bench)->noise(); }
EK_API double ekt_head_bench_pass(void *bench, int64_t gumbel, int64_t soft, float softcap, int64_t top_k, double sure,
                                   float temperature) {
  return static_cast<HeadBench *>(bench)->pass(gumbel != 0, soft != 0, softcap, top_k, sure, temperature);
}

}  // extern "C"
