#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cpu.h"
#include "flash_file.h"
#include "kernels/head.h"
#include "kernels/noise.h"
#include "thread_pool.h"
#include "unit.h"

namespace {

const char *const kSets[] = {"avx512", "avx2", "neon", "scalar"};

// Runs body with every instruction set that the process may use.
template <typename Body>
void for_sets(const Body &body) {
  for (const char *set : kSets) {
    if (!edgekit::can_use_instruction_set(set)) continue;
    edgekit::noise_use_instruction_set(set);
    edgekit::head_use_instruction_set(set);
    body();
  }
  edgekit::noise_use_instruction_set(nullptr);
  edgekit::head_use_instruction_set(nullptr);
}

bool same(const float *a, const float *b, std::int64_t count) {
  return count == 0 || std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(float)) == 0;
}

std::uint32_t next_number(std::uint64_t &state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<std::uint32_t>(state >> 33);
}

struct Case {
  std::int64_t rows, vocabulary, tile_rows;
  int bits, threads;
};

// The table's memory ends where the table does.
edgekit::HeadResult run_head(const Case &c, std::vector<float> &logits) {
  constexpr std::int64_t kHidden = 40;
  std::uint64_t state = static_cast<std::uint64_t>(c.vocabulary);
  const std::size_t size = static_cast<std::size_t>(c.vocabulary * kHidden * c.bits / 8);
  std::vector<std::uint8_t> codes(size);
  for (std::size_t i = 0; i < size; ++i) {
    // Upper bytes of bfloat16 below 4, lower ones anything.
    const std::uint32_t number = next_number(state);
    codes[i] = static_cast<std::uint8_t>(c.bits == 16 && i % 2 == 1 ? number % 64 : 1 + number % 255);
  }
  std::vector<float> scales(static_cast<std::size_t>(c.vocabulary), 0.01f);
  std::vector<float> x(static_cast<std::size_t>(c.rows * kHidden));
  for (float &value : x) value = static_cast<float>(next_number(state) % 2001) * 0.001f - 1.0f;

  edgekit::ThreadPool pool(c.threads);
  const edgekit::GumbelDraw draw{17, 4, 0.5f};
  edgekit::HeadOptions options;
  options.temperature = 0.75f;
  options.softcap = 11.0f;
  options.gumbel = &draw;
  options.soft = true;
  options.top_k = 5;
  logits.assign(static_cast<std::size_t>(c.rows * c.vocabulary), 0.0f);
  options.logits = logits.data();
  edgekit::HeadPass pass(pool, x.data(), c.rows, kHidden, c.vocabulary, c.bits, options);
  for (std::int64_t first = 0; first < c.vocabulary; first += c.tile_rows) {
    edgekit::Table tile;
    tile.rows = std::min(c.tile_rows, c.vocabulary - first);
    tile.columns = kHidden;
    tile.bits = c.bits;
    tile.codes = codes.data() + first * kHidden * c.bits / 8;
    tile.scales = c.bits == 8 ? scales.data() + first : nullptr;
    pass.add(first, tile);
  }
  return pass.result();
}

}  // namespace

EK_TEST(noise_fills_what_it_is_given_and_no_more) {
  std::vector<float> whole(400), part;
  edgekit::noise_use_instruction_set("scalar");
  edgekit::gumbel_noise(5, 6, 0, 400, whole.data());
  for_sets([&] {
    for (std::int64_t first : {0, 1, 5, 8, 15}) {
      for (std::int64_t count = 0; count < 300; count += 1 + count / 8) {
        const auto offset = static_cast<std::uint64_t>(first);
        part.assign(static_cast<std::size_t>(count), 0.0f);
        edgekit::gumbel_noise(5, 6, offset, count, part.data());
        EK_CHECK(same(part.data(), whole.data() + first, count));
        std::vector<std::uint32_t> halves(static_cast<std::size_t>(count));
        edgekit::philox_halves(5, 6, offset, count, halves.data());
        edgekit::gumbel_of_halves(halves.data(), count, part.data());
        EK_CHECK(same(part.data(), whole.data() + first, count));
      }
    }
  });
}

EK_TEST(integers_and_uniform_stay_in_range) {
  for_sets([] {
    std::vector<std::int64_t> integers(131);
    edgekit::philox_integers(9, 1, 10, 131, integers.data());
    for (std::int64_t value : integers) EK_CHECK(value >= 0 && value < 10);
    std::vector<double> uniform(131);
    edgekit::philox_uniform(9, 2, 131, uniform.data());
    for (double value : uniform) EK_CHECK(value > 0.0 && value < 1.0);
  });
}

EK_TEST(head_statistics_follow_from_the_scores) {
  for_sets([] {
    for (const Case &c : {Case{1, 1, 1, 8, 1}, Case{3, 65, 64, 8, 2}, Case{17, 700, 130, 8, 3},
                          Case{17, 700, 130, 16, 2}, Case{2, 8300, 5000, 8, 2}}) {
      std::vector<float> logits;
      const edgekit::HeadResult result = run_head(c, logits);
      for (std::int64_t row = 0; row < c.rows; ++row) {
        const float *z = logits.data() + row * c.vocabulary;
        const auto at = static_cast<std::size_t>(row);
        const float *best = std::max_element(z, z + c.vocabulary);
        EK_CHECK(result.argmax[at] == best - z);
        double sum = 0.0;
        for (std::int64_t i = 0; i < c.vocabulary; ++i) sum += std::exp(static_cast<double>(z[i]) - *best);
        EK_CHECK(std::fabs(result.log_z[at] - (*best + std::log(sum))) < 1e-5);
        EK_CHECK(result.sample[at] >= 0 && result.sample[at] < c.vocabulary);
        EK_CHECK(result.entropy[at] >= 0.0f && result.entropy[at] < std::log(static_cast<double>(c.vocabulary)) + 1e-5);
        const auto k = static_cast<std::int64_t>(result.top_ids.size()) / c.rows;
        EK_CHECK(k == std::min<std::int64_t>(5, c.vocabulary));
        for (std::int64_t i = 0; i < k; ++i) {
          const auto place = static_cast<std::size_t>(row * k + i);
          EK_CHECK(result.top_z[place] == z[result.top_ids[place]]);
        }
      }
    }
  });
}

EK_TEST(head_is_the_same_for_any_number_of_threads_and_any_instruction_set) {
  std::vector<float> logits, other_logits;
  const Case alone{19, 2500, 900, 8, 1};
  const edgekit::HeadResult expected = run_head(alone, logits);
  for_sets([&] {
    for (int threads = 1; threads <= 3; ++threads) {
      Case c = alone;
      c.threads = threads;
      const edgekit::HeadResult result = run_head(c, other_logits);
      EK_CHECK(logits == other_logits);
      EK_CHECK(result.argmax == expected.argmax && result.sample == expected.sample);
      EK_CHECK(result.entropy == expected.entropy && result.log_z == expected.log_z && result.soft == expected.soft);
    }
  });
}
