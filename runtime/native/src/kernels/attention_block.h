// A task of attention, written once for every instruction set. `L` is a lanes struct of vector_math.h that also has:
//   kRows, kVectors     rows and vectors of a register tile; kRows is a multiple of 3
//   multiply_add(acc, a, b)   acc[m][n] += a[m] * b[n]: the products of a tile, fused or not
//   transpose(x)        of kWidth vectors
//
// Queries are the lanes of all vectors: scores^T = K q^T, then y^T = V^T weights^T. Both products read one operand as
// single numbers along a row and the other as a panel of vectors, the weights come out of the first as the panel that
// the second needs, and maxima and sums over keys are sums of vectors. The softmax is the online one (arXiv
// 1805.02867). What a query gets does not depend on which queries share its panel or its task.
#ifndef EDGEKIT_KERNELS_ATTENTION_BLOCK_H
#define EDGEKIT_KERNELS_ATTENTION_BLOCK_H

#include <cstdint>

#include "kernels/float_kernels.h"
#include "kernels/vector_math.h"

// Sums of a tile stay in registers only if their loops are gone before the compiler assigns memory to the array.
#if defined(__clang__)
#define EK_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define EK_UNROLL _Pragma("GCC unroll 16")
#else
#define EK_UNROLL
#endif

namespace edgekit {
namespace {

// An additive mask hides what is at most this: its weight is exactly 0 beside any key that is not hidden.
constexpr float kHidden = -1e29f;
// Below every score; finite, so that the difference to a score of -inf is no NaN.
constexpr float kLowest = -3e38f;

EK_VECTOR_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

template <typename L>
class Attention {
 public:
  explicit Attention(const AttentionTask &task) : task_(task), to_(task.scratch) {}

  void run() {
    for (std::int64_t row = 0; row < task_.rows; row += kLanes) load_queries(row);
    for (std::int64_t key = 0; key < task_.keys; key += task_.key_block) {
      const std::int64_t count = smaller(task_.key_block, task_.keys - key);
      bool loaded = false;
      for (std::int64_t row = 0; row < task_.rows; row += kLanes) {
        const Sight sight = task_.mask == nullptr ? Sight::clear : look(row, key, count);
        if (sight == Sight::hidden) continue;
        if (!loaded) load_keys(key, count);
        loaded = true;
        if (vectors(row) <= kVectors / 2) {
          add_keys<kVectors / 2>(row, key, count, sight);
        } else {
          add_keys<kVectors>(row, key, count, sight);
        }
      }
    }
    for (std::int64_t row = 0; row < task_.rows; row += kLanes) store_outputs(row);
  }

 private:
  using Float = typename L::Float;
  static constexpr int kWidth = L::kWidth;
  static constexpr int kVectors = L::kVectors;
  static constexpr int kLanes = kWidth * kVectors;
  static constexpr int kStep = L::kRows / 3;  // tiles have 1, 2 or 3 times as many rows

  // How the queries of a panel see a block of keys.
  enum class Sight { clear, mixed, hidden };

  std::int64_t lanes(std::int64_t row) const { return smaller(kLanes, task_.rows - row); }
  std::int64_t vectors(std::int64_t row) const { return (lanes(row) + kWidth - 1) / kWidth; }
  std::int64_t position(std::int64_t row) const { return (task_.first + row) / task_.group; }
  std::int64_t head(std::int64_t row) const { return (task_.first + row) % task_.group; }
  float *q_panel(std::int64_t row) const { return to_.q + row * task_.head_dim; }
  float *y_panel(std::int64_t row) const { return to_.y + row * round_up(task_.head_dim, 16); }
  const float *mask_row(std::int64_t row, std::int64_t key) const {
    return task_.mask + position(row) * task_.keys + key;
  }

  // out[c * stride + r] = rows[r][c] * factor; zero for r beyond `count`, up to `padded` (a multiple of the width).
  static void transpose_rows(const float *const *rows, std::int64_t count, std::int64_t padded, std::int64_t columns,
                             Float factor, float *out, std::int64_t stride) {
    Float x[kWidth];
    for (std::int64_t r = 0; r < padded; r += kWidth) {
      std::int64_t c = 0;
      if (r + kWidth <= count) {
        for (; c + kWidth <= columns; c += kWidth) {
          for (int i = 0; i < kWidth; ++i) x[i] = L::mul(L::load(rows[r + i] + c), factor);
          L::transpose(x);
          for (int i = 0; i < kWidth; ++i) L::store(out + (c + i) * stride + r, x[i]);
        }
      }
      for (; c < columns; c += kWidth) {
        const int width = static_cast<int>(smaller(kWidth, columns - c));
        for (int i = 0; i < kWidth; ++i) {
          x[i] = r + i < count ? L::mul(L::load_first(rows[r + i] + c, width), factor) : L::set(0.0f);
        }
        L::transpose(x);
        for (int i = 0; i < width; ++i) L::store(out + (c + i) * stride + r, x[i]);
      }
    }
  }

  // c[m][lane] = sum over k of a[k][m] * b[k][lane], beginning with c[m][lane] * factor[lane] if there are factors.
  template <int M, int N, bool kContinue>
  static void tile(const float *a, std::int64_t a_stride, const float *b, std::int64_t depth, const float *factor,
                   float *c) {
    Float acc[M][N];
    EK_UNROLL for (int m = 0; m < M; ++m) {
      EK_UNROLL for (int n = 0; n < N; ++n) {
        acc[m][n] = L::set(0.0f);
        if (kContinue) acc[m][n] = L::mul(L::load(c + m * kLanes + n * kWidth), L::load(factor + n * kWidth));
      }
    }
    for (std::int64_t k = 0; k < depth; ++k) {
      Float panel[N];
      EK_UNROLL for (int n = 0; n < N; ++n) panel[n] = L::load(b + n * kWidth);
      L::multiply_add(acc, a, panel);
      a += a_stride;
      b += kLanes;
    }
    EK_UNROLL for (int m = 0; m < M; ++m) {
      EK_UNROLL for (int n = 0; n < N; ++n) L::store(c + m * kLanes + n * kWidth, acc[m][n]);
    }
  }

  // The same for any number of rows; up to kStep - 1 rows more are written.
  template <int N, bool kContinue>
  static void product(const float *a, std::int64_t a_stride, const float *b, std::int64_t depth, std::int64_t rows,
                      const float *factor, float *c) {
    std::int64_t m = 0;
    for (; m + 2 * kStep < rows; m += 3 * kStep) {
      tile<3 * kStep, N, kContinue>(a + m, a_stride, b, depth, factor, c + m * kLanes);
    }
    if (m + kStep < rows) {
      tile<2 * kStep, N, kContinue>(a + m, a_stride, b, depth, factor, c + m * kLanes);
    } else if (m < rows) {
      tile<kStep, N, kContinue>(a + m, a_stride, b, depth, factor, c + m * kLanes);
    }
  }

  void load_queries(std::int64_t row) {
    const float *rows[kLanes];
    for (std::int64_t i = 0; i < lanes(row); ++i) {
      rows[i] = task_.q + head(row + i) * task_.q_head + position(row + i) * task_.q_row;
    }
    transpose_rows(rows, lanes(row), kLanes, task_.head_dim, L::set(task_.scale), q_panel(row), kLanes);
    float *y = y_panel(row);
    for (std::int64_t i = 0; i < round_up(task_.head_dim, 16) * kLanes; i += kWidth) L::store(y + i, L::set(0.0f));
    for (int i = 0; i < kLanes; i += kWidth) {
      L::store(to_.largest + row + i, L::set(kLowest));
      L::store(to_.sums + row + i, L::set(0.0f));
    }
  }

  // Steps through keys in order, from piece to piece.
  class Keys {
   public:
    Keys(const AttentionTask &task, std::int64_t first) : head_(task.kv_head), piece_(task.pieces), at_(first) { settle(); }
    const float *key() const { return piece_->k + head_ * piece_->k_head + at_ * piece_->k_row; }
    const float *value() const { return piece_->v + head_ * piece_->v_head + at_ * piece_->v_row; }
    // To the next; the one behind the last key must not be read.
    void step(bool more) {
      ++at_;
      if (more) settle();
    }

   private:
    void settle() {
      for (; at_ >= piece_->count; ++piece_) at_ -= piece_->count;
    }

    const std::int64_t head_;
    const AttentionKeys *piece_;
    std::int64_t at_;
  };

  void load_keys(std::int64_t key, std::int64_t count) {
    Keys keys(task_, key), values(task_, key);
    for (std::int64_t j = 0; j < count; j += kLanes) {
      const float *rows[kLanes];
      const std::int64_t some = smaller(kLanes, count - j);
      for (std::int64_t i = 0; i < some; ++i) {
        rows[i] = keys.key();
        keys.step(j + i + 1 < count);
      }
      transpose_rows(rows, some, round_up(some, kWidth), task_.head_dim, L::set(1.0f), to_.keys + j, to_.key_stride);
    }
    const std::int64_t padded = round_up(task_.head_dim, 16);
    for (std::int64_t j = 0; j < count; ++j) {
      const float *from = values.value();
      values.step(j + 1 < count);
      float *to = to_.values + j * to_.value_stride;
      std::int64_t i = 0;
      for (; i + kWidth <= task_.head_dim; i += kWidth) L::store(to + i, L::load(from + i));
      if (i < task_.head_dim) {
        L::store(to + i, L::load_first(from + i, static_cast<int>(task_.head_dim - i)));
        i += kWidth;
      }
      for (; i < padded; i += kWidth) L::store(to + i, L::set(0.0f));
    }
  }

  Sight look(std::int64_t row, std::int64_t key, std::int64_t count) const {
    bool all_hidden = true, all_clear = true;
    const std::int64_t last = row + lanes(row) - 1;
    // Rows of one position share their line of the mask.
    for (std::int64_t t = position(row); t <= position(last); ++t) {
      const float *mask = task_.mask + t * task_.keys + key;
      float least = mask[0], most = mask[0];
      std::int64_t j = 0;
      if (count >= kWidth) {
        Float low = L::load(mask), high = low;
        for (j = kWidth; j + kWidth <= count; j += kWidth) {
          const Float x = L::load(mask + j);
          low = L::min(low, x);
          high = L::max(high, x);
        }
        float lows[kWidth], highs[kWidth];
        L::store(lows, low);
        L::store(highs, high);
        for (int i = 0; i < kWidth; ++i) {
          least = lows[i] < least ? lows[i] : least;
          most = highs[i] > most ? highs[i] : most;
        }
      }
      for (; j < count; ++j) {
        least = mask[j] < least ? mask[j] : least;
        most = mask[j] > most ? mask[j] : most;
      }
      all_hidden = all_hidden && most <= kHidden;
      all_clear = all_clear && least == 0.0f && most == 0.0f;
    }
    return all_hidden ? Sight::hidden : all_clear ? Sight::clear : Sight::mixed;
  }

  void add_mask(std::int64_t row, std::int64_t key, std::int64_t count) {
    const float *rows[kLanes];
    for (std::int64_t i = 0; i < lanes(row); ++i) rows[i] = mask_row(row + i, key);
    transpose_rows(rows, lanes(row), kLanes, count, L::set(1.0f), to_.mask, kLanes);
    for (std::int64_t i = 0; i < count * kLanes; i += kWidth) {
      L::store(to_.scores + i, L::add(L::load(to_.scores + i), L::load(to_.mask + i)));
    }
  }

  // Adds a block of keys, which is loaded, to the sums of a panel of queries.
  template <int N>
  void add_keys(std::int64_t row, std::int64_t key, std::int64_t count, Sight sight) {
    product<N, false>(to_.keys, to_.key_stride, q_panel(row), task_.head_dim, count, nullptr, to_.scores);
    if (sight == Sight::mixed) add_mask(row, key, count);
    for (int n = 0; n < N; ++n) weigh(row + n * kWidth, count, to_.scores + n * kWidth, to_.factor + n * kWidth);
    product<N, true>(to_.values, to_.value_stride, to_.scores, count, task_.head_dim, to_.factor, y_panel(row));
  }

  // Turns the scores of a vector of queries into weights and says what the sums so far must be multiplied with.
  void weigh(std::int64_t row, std::int64_t count, float *scores, float *factor) {
    // Two chains each, so that an operation need not wait for the one before. A NaN may get lost in a maximum; it
    // comes back with its exponential.
    const Float before = L::load(to_.largest + row);
    Float even = before, odd = before;
    std::int64_t j = 0;
    for (; j + 2 <= count; j += 2) {
      even = L::max(L::load(scores + j * kLanes), even);
      odd = L::max(L::load(scores + (j + 1) * kLanes), odd);
    }
    if (j < count) even = L::max(L::load(scores + j * kLanes), even);
    const Float largest = L::max(even, odd);
    even = odd = L::set(0.0f);
    for (j = 0; j + 2 <= count; j += 2) {
      const Float first = vector_exp<L>(L::sub(L::load(scores + j * kLanes), largest));
      const Float second = vector_exp<L>(L::sub(L::load(scores + (j + 1) * kLanes), largest));
      L::store(scores + j * kLanes, first);
      L::store(scores + (j + 1) * kLanes, second);
      even = L::add(even, first);
      odd = L::add(odd, second);
    }
    if (j < count) {
      const Float first = vector_exp<L>(L::sub(L::load(scores + j * kLanes), largest));
      L::store(scores + j * kLanes, first);
      even = L::add(even, first);
    }
    const Float shrink = vector_exp<L>(L::sub(before, largest));
    L::store(factor, shrink);
    L::store(to_.largest + row, largest);
    L::store(to_.sums + row, L::add(L::mul(L::load(to_.sums + row), shrink), L::add(even, odd)));
  }

  void store_outputs(std::int64_t row) {
    const float *panel = y_panel(row);
    Float x[kWidth];
    for (std::int64_t r = 0; r < lanes(row); r += kWidth) {
      const Float inverse = L::div(L::set(1.0f), L::load(to_.sums + row + r));
      const std::int64_t some = smaller(kWidth, lanes(row) - r);
      float *rows[kWidth];
      for (std::int64_t i = 0; i < some; ++i) {
        rows[i] = task_.y + head(row + r + i) * task_.y_head + position(row + r + i) * task_.y_row;
      }
      for (std::int64_t c = 0; c < task_.head_dim; c += kWidth) {
        for (int i = 0; i < kWidth; ++i) x[i] = L::mul(L::load(panel + (c + i) * kLanes + r), inverse);
        L::transpose(x);
        const std::int64_t width = smaller(kWidth, task_.head_dim - c);
        for (int i = 0; i < some; ++i) {
          if (width == kWidth) {
            L::store(rows[i] + c, x[i]);
          } else {
            L::store_first(rows[i] + c, x[i], static_cast<int>(width));
          }
        }
      }
    }
  }

  const AttentionTask &task_;
  const AttentionScratch &to_;
};

}  // namespace
}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_ATTENTION_BLOCK_H
