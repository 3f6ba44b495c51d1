// Products of every instruction set against the scalar ones, bit for bit, and the scalar ones against sums in 64
// bits. Arrays have exactly the size that their layout promises, so that a sanitizer sees every step beyond.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "aligned_array.h"
#include "error.h"
#include "kernels/gemm.h"
#include "thread_pool.h"
#include "unit.h"

using namespace edgekit;
using edgekit_testing::Array;

namespace {

class Random {
 public:
  std::uint32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state_ >> 33);
  }
  std::int64_t below(std::int64_t end) { return static_cast<std::int64_t>(next()) % end; }
  float signed_unit() { return static_cast<float>(next() & 0xffffff) / 8388608.0f - 1.0f; }

 private:
  std::uint64_t state_ = 1;
};

std::int64_t panels(std::int64_t rows) { return (rows + 63) / 64; }

struct StoredMatrix {
  StoredMatrix(Random &random, int bits, std::int64_t rows, std::int64_t columns, std::int64_t group)
      : codes(bits == 16  ? rows * columns * 2
              : bits == 8 ? panels(rows) * ((columns + 3) / 4) * 256
                          : panels(rows) * columns * 32),
        group_scales(bits == 4 ? panels(rows) * (columns / group) * 64 : 0),
        scales(panels(rows) * 64) {
    if (bits == 16) {
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        const std::uint16_t value = static_cast<std::uint16_t>(0x3f00 + random.below(256) + (random.next() & 0x8000));
        std::memcpy(codes.data() + 2 * i, &value, 2);
      }
    } else {
      for (std::int64_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(random.next());
    }
    for (std::int64_t i = 0; i < group_scales.size(); ++i) {
      group_scales[i] = static_cast<std::uint8_t>(1 + random.below(15));
    }
    for (std::int64_t i = 0; i < scales.size(); ++i) scales[i] = 0.01f + 0.001f * static_cast<float>(random.below(9));
    view = {rows, columns, bits, group, codes.data(), group_scales.data(), scales.data()};
  }

  // The stored integer of (row, column), without the scale of the row.
  std::int64_t value(std::int64_t row, std::int64_t column) const {
    const std::int64_t panel = row / 64, r = row % 64, quad = column / 4, i = column % 4;
    const std::int64_t quads = (view.columns + 3) / 4;
    if (view.bits == 8) return codes.data()[((panel * quads + quad) * 64 + r) * 4 + i] - 128;
    const int pair = codes.data()[((panel * (view.columns / 8) + quad / 2) * 64 + r) * 4 + i];
    const int code = quad % 2 == 0 ? pair & 15 : pair >> 4;
    const std::int64_t groups = view.columns / view.group;
    return (code - 8) * group_scales.data()[(panel * groups + column / view.group) * 64 + r];
  }

  Array<std::uint8_t> codes;
  Array<std::uint8_t> group_scales;
  Array<float> scales;
  Matrix view;
};

struct StoredTable {
  StoredTable(Random &random, int bits, std::int64_t rows, std::int64_t columns)
      : codes(rows * columns * bits / 8), scales(rows) {
    for (std::int64_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(random.next());
    // Small exponents, no infinities: the upper byte of a bfloat16 number stays below 0x40.
    for (std::int64_t i = 1; bits == 16 && i < codes.size(); i += 2) codes[i] &= 0xbf;
    for (std::int64_t i = 0; i < rows; ++i) scales[i] = 0.01f + 0.001f * static_cast<float>(random.below(9));
    view = {rows, columns, bits, codes.data(), scales.data()};
  }

  Array<std::uint8_t> codes;
  Array<float> scales;
  Table view;
};

struct Shape {
  std::int64_t rows, outputs, columns, group;
};

constexpr float kUntouched = 12345.0f;
constexpr std::int64_t kGap = 5;  // between rows of results; must stay untouched

// Everything that one instruction set computes for one shape.
struct Results {
  std::vector<Array<float>> arrays;
  std::vector<std::int8_t> codes;

  bool operator==(const Results &other) const { return arrays == other.arrays && codes == other.codes; }
};

class Case {
 public:
  Case(const Shape &shape, int threads)
      : shape_(shape),
        pool_(threads),
        scratch_(static_cast<std::int64_t>(gemm_scratch_bytes(threads))),
        x_(shape.rows * (shape.columns + 3)),
        memory_(static_cast<std::int64_t>(quantized_bytes(shape.rows, shape.columns))),
        bias_(shape.outputs),
        eight_(random_, 8, shape.outputs, shape.columns, 0),
        other_eight_(random_, 8, shape.outputs, shape.columns, 0),
        sixteen_(random_, 16, shape.outputs, shape.columns, 0),
        table_(random_, 8, shape.outputs, shape.columns),
        wide_table_(random_, 16, shape.outputs, shape.columns),
        p_(shape.rows * shape.outputs),
        fine_above_(shape.rows) {
    for (std::int64_t i = 0; i < x_.size(); ++i) x_[i] = random_.signed_unit();
    for (std::int64_t i = 0; i < bias_.size(); ++i) bias_[i] = random_.signed_unit();
    for (std::int64_t i = 0; i < p_.size(); ++i) p_[i] = 1.0f + random_.signed_unit();
    for (std::int64_t i = 0; i < fine_above_.size(); ++i) fine_above_[i] = 2.0f + random_.signed_unit();
    if (shape.group > 0) {
      four_ = std::make_unique<StoredMatrix>(random_, 4, shape.outputs, shape.columns, shape.group);
      other_four_ = std::make_unique<StoredMatrix>(random_, 4, shape.outputs, shape.columns, shape.group);
    }
  }

  Results run() {
    Results results;
    const std::int64_t columns = shape_.columns;
    std::fill(memory_.data(), memory_.data() + memory_.size(), std::uint8_t{0xee});
    rounded_ = quantize_rows(pool_, x_.data(), columns + 3, shape_.rows, columns, memory_.data());
    results.codes.assign(rounded_.codes, rounded_.codes + shape_.rows * rounded_.stride);
    for (const auto *matrix : {&eight_.view, four_ ? &four_->view : nullptr}) {
      if (!matrix) continue;
      results.arrays.push_back(result([&](float *y) {
        linear(pool_, *matrix, rounded_, y, stride(), {bias_.data(), y, stride()}, scratch_.data());
      }));
    }
    for (const Activation kind : {Activation::silu, Activation::gelu_tanh}) {
      results.arrays.push_back(result([&](float *y) {
        const Matrix &gate = four_ ? four_->view : eight_.view;
        const Matrix &up = four_ ? other_four_->view : other_eight_.view;
        linear_gated(pool_, gate, up, rounded_, kind, y, stride(), scratch_.data());
      }));
    }
    for (const auto *matrix : {&eight_.view, &sixteen_.view, four_ ? &four_->view : nullptr}) {
      if (!matrix) continue;
      results.arrays.push_back(result([&](float *y) {
        linear_float(pool_, *matrix, x_.data(), columns + 3, shape_.rows, y, stride(), {bias_.data(), nullptr, 0},
                     scratch_.data());
      }));
    }
    results.arrays.push_back(result(
        [&](float *z) { table_scores(pool_, table_.view, rounded_, z, stride(), scratch_.data()); }));
    for (const auto *table : {&table_.view, &wide_table_.view}) {
      results.arrays.push_back(result([&](float *z) {
        table_scores_float(pool_, *table, x_.data(), columns + 3, shape_.rows, z, stride(), scratch_.data());
      }));
      results.arrays.push_back(result(
          [&](float *y) {
            table_mix(pool_, *table, p_.data(), shape_.outputs, shape_.rows, fine_above_.data(), y, columns + kGap,
                      scratch_.data());
          },
          columns));
    }
    return results;
  }

  // After run(): the products against sums in 64 bits.
  void check_sums() {
    for (const auto *matrix : {&eight_, four_.get()}) {
      if (!matrix) continue;
      Array<float> y(shape_.rows * shape_.outputs);
      linear(pool_, matrix->view, rounded_, y.data(), shape_.outputs, {}, scratch_.data());
      for (std::int64_t row = 0; row < shape_.rows; ++row) {
        for (std::int64_t output = 0; output < shape_.outputs; ++output) {
          std::int64_t sum = 0;
          for (std::int64_t k = 0; k < shape_.columns; ++k) {
            sum += matrix->value(output, k) * rounded_.codes[row * rounded_.stride + k];
          }
          const float factor = rounded_.scales[row] * matrix->view.scales[output];
          EK_CHECK(y[row * shape_.outputs + output] == static_cast<float>(sum) * factor);
        }
      }
    }
  }

 private:
  std::int64_t stride() const { return shape_.outputs + kGap; }

  template <typename Compute>
  Array<float> result(Compute compute, std::int64_t columns = 0) {
    columns = columns > 0 ? columns : shape_.outputs;
    Array<float> y(shape_.rows * (columns + kGap), kUntouched);
    compute(y.data());
    for (std::int64_t row = 0; row < shape_.rows; ++row) {
      for (std::int64_t i = 0; i < kGap; ++i) EK_CHECK(y[row * (columns + kGap) + columns + i] == kUntouched);
    }
    return y;
  }

  Shape shape_;
  Random random_;
  ThreadPool pool_;
  Array<std::uint8_t> scratch_;
  Array<float> x_;
  Array<std::uint8_t> memory_;
  Array<float> bias_;
  StoredMatrix eight_, other_eight_, sixteen_;
  StoredTable table_, wide_table_;
  Array<float> p_;
  Array<float> fine_above_;
  std::unique_ptr<StoredMatrix> four_, other_four_;
  QuantizedRows rounded_;
};

constexpr Shape kShapes[] = {
    {1, 1, 1, 0},     {1, 64, 16, 16},  {2, 65, 32, 32},   {3, 63, 48, 16},   {4, 17, 5, 0},
    {5, 70, 130, 0},  {6, 128, 64, 64}, {7, 40, 512, 128}, {8, 33, 528, 16},  {9, 66, 1024, 256},
    {16, 130, 96, 32}, {13, 5, 1031, 0}, {37, 20, 544, 32}, {261, 9, 33, 0},  {3, 1100, 20, 0},
    {2, 300, 2064, 16},
};

}  // namespace

EK_TEST(every_instruction_set_computes_what_the_scalar_one_does) {
  for (const Shape &shape : kShapes) {
    Case one(shape, 1);
    gemm_use_instruction_set("scalar");
    const Results expected = one.run();
    one.check_sums();
    for (const char *const *name = gemm_instruction_sets(); *name; ++name) {
      for (const int threads : {1, 2, 9}) {
        Case same(shape, threads);
        gemm_use_instruction_set(*name);
        EK_CHECK(same.run() == expected);
      }
    }
  }
  gemm_use_instruction_set(nullptr);
}

EK_TEST(an_unknown_instruction_set_is_refused) {
  bool refused = false;
  try {
    gemm_use_instruction_set("abacus");
  } catch (const Error &error) {
    refused = error.status() == EK_INVALID_ARGUMENT;
  }
  EK_CHECK(refused);
}
