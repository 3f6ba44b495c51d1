// Every instruction set against the scalar one (same bits) and attention against sums in double, with memory of
// exactly the size that is needed.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "aligned_array.h"
#include "cpu.h"
#include "error.h"
#include "kernels/attention.h"
#include "kernels/float_ops.h"
#include "unit.h"

using edgekit::Activation;
using edgekit::Strided;
using edgekit::ThreadPool;

namespace {

using Floats = std::vector<float>;

const char *const kSets[] = {"avx512", "avx2", "neon", "scalar"};

// Calls body(name) with each of the instruction sets that this machine has.
template <typename Body>
void for_each_set(const Body &body) {
  for (const char *name : kSets) {
    if (!edgekit::can_use_instruction_set(name)) continue;
    edgekit::float_use_instruction_set(name);
    body(std::string(name));
  }
  edgekit::float_use_instruction_set(nullptr);
}

Floats random_floats(std::int64_t count, unsigned seed, float spread = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  Floats out(static_cast<std::size_t>(count));
  for (float &x : out) x = normal(generator);
  return out;
}

Strided dense(Floats &x, std::int64_t s0, std::int64_t s1, std::int64_t s2, std::int64_t s3) {
  Strided out;
  out.data = x.data();
  const std::int64_t shape[4] = {s0, s1, s2, s3};
  const std::int64_t stride[4] = {s1 * s2 * s3, s2 * s3, s3, 1};
  std::memcpy(out.shape, shape, sizeof shape);
  std::memcpy(out.stride, stride, sizeof stride);
  return out;
}

bool same_bits(const Floats &a, const Floats &b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// All row operations one after the other on rows of `columns`.
Floats row_results(ThreadPool &pool, std::int64_t rows, std::int64_t columns) {
  Floats x = random_floats(rows * columns, 1, 4.0f), weight = random_floats(columns, 2), y(x.size()), all;
  const auto keep = [&] { all.insert(all.end(), y.begin(), y.end()); };
  edgekit::rms_norm(pool, dense(x, 1, 1, rows, columns), weight.data(), 1e-6f, dense(y, 1, 1, rows, columns));
  keep();
  const std::int64_t half = columns / 3;
  Floats cos = random_floats(rows * half, 3), sin = random_floats(rows * half, 4);
  edgekit::rope(pool, dense(x, 1, 1, rows, columns), cos.data(), sin.data(), half, dense(y, 1, 1, rows, columns));
  keep();
  for (Activation kind : {Activation::silu, Activation::gelu_tanh}) {
    edgekit::gated_act(pool, x.data(), columns, y.data(), columns, rows, columns, kind, y.data(), columns);
    keep();
  }
  edgekit::softmax(pool, x.data(), rows, columns, y.data());
  keep();
  edgekit::exp_array(x.data(), rows * columns, y.data());
  keep();
  edgekit::add(pool, x.data(), y.data(), rows * columns, y.data());
  edgekit::multiply(pool, x.data(), y.data(), rows * columns, y.data());
  edgekit::scale(pool, y.data(), 0.7f, rows * columns, y.data());
  keep();
  return all;
}

struct AttentionCase {
  std::int64_t head_dim, positions, prefix, kv_heads, group;
  bool causal;
};

struct Inputs {
  explicit Inputs(const AttentionCase &c)
      : q(random_floats(c.kv_heads * c.group * c.positions * c.head_dim, 1)),
        k(random_floats(c.kv_heads * c.positions * c.head_dim, 2)),
        v(random_floats(c.kv_heads * c.positions * c.head_dim, 3)),
        prefix_k(random_floats(c.kv_heads * c.prefix * c.head_dim, 4)),
        prefix_v(random_floats(c.kv_heads * c.prefix * c.head_dim, 5)) {
    if (!c.causal) return;
    for (std::int64_t t = 0; t < c.positions; ++t) {
      for (std::int64_t s = 0; s < c.prefix + c.positions; ++s) mask.push_back(s <= c.prefix + t ? 0.0f : -1e30f);
    }
  }

  Floats q, k, v, prefix_k, prefix_v, mask;
};

float scale_of(const AttentionCase &c) { return 1.0f / std::sqrt(static_cast<float>(c.head_dim)); }

Floats attend(const AttentionCase &c, Inputs &in, int threads) {
  ThreadPool pool(threads);
  Floats y(in.q.size());
  const std::size_t bytes = edgekit::attention_scratch_bytes(threads, c.head_dim);
  edgekit_testing::Array<std::uint8_t> scratch(static_cast<std::int64_t>(bytes), 0xFF);  // not a number
  const std::int64_t heads = c.kv_heads * c.group;
  const edgekit::KeyPiece prefix{dense(in.prefix_k, 1, c.kv_heads, c.prefix, c.head_dim),
                                 dense(in.prefix_v, 1, c.kv_heads, c.prefix, c.head_dim)};
  const edgekit::KeyPiece own{dense(in.k, 1, c.kv_heads, c.positions, c.head_dim),
                              dense(in.v, 1, c.kv_heads, c.positions, c.head_dim)};
  edgekit::attention(pool, dense(in.q, 1, heads, c.positions, c.head_dim), {prefix, own},
                     c.causal ? in.mask.data() : nullptr, scale_of(c), dense(y, 1, heads, c.positions, c.head_dim),
                     scratch.data());
  return y;
}

// The largest difference to attention in double.
double error_of(const AttentionCase &c, const Inputs &in, const Floats &y) {
  const std::int64_t keys = c.prefix + c.positions, d = c.head_dim;
  double worst = 0.0;
  for (std::int64_t head = 0; head < c.kv_heads * c.group; ++head) {
    const std::int64_t kv = head / c.group;
    const auto row = [&](const Floats &before, const Floats &now, std::int64_t s) {
      if (s < c.prefix) return before.data() + (kv * c.prefix + s) * d;
      return now.data() + (kv * c.positions + s - c.prefix) * d;
    };
    for (std::int64_t t = 0; t < c.positions; ++t) {
      const float *q = in.q.data() + (head * c.positions + t) * d;
      std::vector<double> weights;
      double sum = 0.0;
      for (std::int64_t s = 0; s < keys; ++s) {
        double score = 0.0;
        for (std::int64_t i = 0; i < d; ++i) score += static_cast<double>(q[i]) * row(in.prefix_k, in.k, s)[i];
        const double hidden = c.causal ? in.mask[static_cast<std::size_t>(t * keys + s)] : 0.0;
        weights.push_back(std::exp(score * scale_of(c) + hidden));
        sum += weights.back();
      }
      for (std::int64_t i = 0; i < d; ++i) {
        double expected = 0.0;
        for (std::int64_t s = 0; s < keys; ++s) {
          expected += weights[static_cast<std::size_t>(s)] / sum * row(in.prefix_v, in.v, s)[i];
        }
        const float got = y[static_cast<std::size_t>((head * c.positions + t) * d + i)];
        worst = std::fmax(worst, std::fabs(got - expected));
      }
    }
  }
  return worst;
}

}  // namespace

EK_TEST(row_operations_give_the_same_bits_on_every_instruction_set) {
  ThreadPool pool(2);
  for (std::int64_t columns : {1, 3, 4, 7, 8, 15, 16, 17, 31, 64, 65, 100, 129, 640}) {
    edgekit::float_use_instruction_set("scalar");
    const Floats expected = row_results(pool, 5, columns);
    for_each_set([&](const std::string &) { EK_CHECK(same_bits(row_results(pool, 5, columns), expected)); });
  }
}

EK_TEST(row_operations_give_the_same_bits_with_any_number_of_threads) {
  ThreadPool one(1), three(3);
  EK_CHECK(same_bits(row_results(one, 40, 1500), row_results(three, 40, 1500)));
}

EK_TEST(an_unknown_float_instruction_set_is_refused) {
  bool refused = false;
  try {
    edgekit::float_use_instruction_set("avx1024");
  } catch (const edgekit::Error &error) {
    refused = error.status() == EK_INVALID_ARGUMENT;
  }
  EK_CHECK(refused);
}

EK_TEST(topk_finds_the_largest_in_order) {
  ThreadPool pool(2);
  const float x[] = {1, 5, 5, -2, 7, 0, 3, 3, 3, 3, 3, 3};
  float values[6];
  std::int64_t indices[6];
  edgekit::topk(pool, x, 2, 6, 3, values, indices);
  const float largest[] = {7, 5, 5, 3, 3, 3};
  const std::int64_t at[] = {4, 1, 2, 0, 1, 2};
  EK_CHECK(std::memcmp(values, largest, sizeof largest) == 0);
  EK_CHECK(std::memcmp(indices, at, sizeof at) == 0);
}

EK_TEST(bfloat16_is_widened) {
  const std::uint16_t x[] = {0x3f80, 0xc040, 0x0000};
  float y[3];
  edgekit::widen(x, 3, y);
  EK_CHECK(y[0] == 1.0f && y[1] == -3.0f && y[2] == 0.0f);
}

EK_TEST(attention_is_near_that_in_double_on_every_instruction_set) {
  const AttentionCase cases[] = {
      {8, 1, 0, 1, 1, false},   {9, 3, 4, 2, 3, true},   {16, 40, 0, 1, 2, true},  {23, 17, 100, 1, 1, false},
      {64, 33, 70, 2, 2, true}, {128, 35, 5, 1, 2, true}, {256, 9, 150, 1, 2, true}, {512, 10, 60, 1, 8, true},
  };
  for (const AttentionCase &c : cases) {
    Inputs in(c);
    for_each_set([&](const std::string &) {
      const Floats one = attend(c, in, 1);
      EK_CHECK(error_of(c, in, one) < 3e-6);
      EK_CHECK(same_bits(attend(c, in, 3), one));
    });
  }
}
