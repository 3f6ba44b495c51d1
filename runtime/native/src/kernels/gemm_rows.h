// Rounding activations and storing results, row by row; see gemm_kernels.h for what the functions do. `L` as in
// vector_math.h. Everything is local to the file that includes this.
#ifndef EDGEKIT_KERNELS_GEMM_ROWS_H
#define EDGEKIT_KERNELS_GEMM_ROWS_H

#include <cstdint>

#include "kernels/bits.h"
#include "kernels/gemm_kernels.h"
#include "kernels/vector_math.h"

namespace edgekit {
namespace {

// Calls step(column, lanes) for all columns of a row; nearly always that is a whole panel.
template <typename L, typename Step>
EK_VECTOR_INLINE void over_columns(int columns, const Step &step) {
  if (columns == kPanelRows) {
    for (int column = 0; column < kPanelRows; column += L::kWidth) step(column, L::kWidth);
  } else {
    for (int column = 0; column < columns; column += L::kWidth) {
      step(column, columns - column < L::kWidth ? columns - column : L::kWidth);
    }
  }
}

template <typename L>
EK_VECTOR_INLINE typename L::Float load_lanes(const float *p, int lanes) {
  return lanes == L::kWidth ? L::load(p) : L::load_first(p, lanes);
}

template <typename L>
EK_VECTOR_INLINE void store_lanes(float *p, typename L::Float x, int lanes) {
  if (lanes == L::kWidth) {
    L::store(p, x);
  } else {
    L::store_first(p, x, lanes);
  }
}

// The functions below copy their PanelOutput: stores through its pointers could change the original.

// + bias + residual, and the store.
template <typename L>
EK_VECTOR_INLINE void store_sum(const PanelOutput &out, std::int64_t row, int column, int lanes,
                                typename L::Float x) {
  if (out.bias) x = L::add(x, load_lanes<L>(out.bias + column, lanes));
  if (out.residual) x = L::add(x, load_lanes<L>(out.residual + row * out.residual_stride + column, lanes));
  store_lanes<L>(out.y + row * out.y_stride + column, x, lanes);
}

template <typename L, std::int32_t Offset>
void finish_rows(const std::int32_t *sums, std::int64_t rows, const PanelOutput &given) {
  const PanelOutput out = given;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int32_t *from = sums + row * kPanelRows;
    const std::int32_t minus = Offset * out.x_sums[row];
    over_columns<L>(out.columns, [&](int column, int lanes) {
      const typename L::Float factor =
          L::mul(L::set(out.x_scales[row]), load_lanes<L>(out.scales + column, lanes));
      store_sum<L>(out, row, column, lanes, L::mul(L::convert(from + column, minus), factor));
    });
  }
}

template <typename L, std::int32_t Offset, Activation Kind>
void finish_gated_rows(const std::int32_t *gate_sums, const std::int32_t *up_sums, std::int64_t rows,
                       const float *gate_scales, const PanelOutput &given) {
  const PanelOutput up = given;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int32_t minus = Offset * up.x_sums[row];
    const typename L::Float x_scale = L::set(up.x_scales[row]);
    over_columns<L>(up.columns, [&](int column, int lanes) {
      const std::int64_t at = row * kPanelRows + column;
      typename L::Float gate = L::mul(L::convert(gate_sums + at, minus),
                                      L::mul(x_scale, load_lanes<L>(gate_scales + column, lanes)));
      const typename L::Float y =
          L::mul(L::convert(up_sums + at, minus), L::mul(x_scale, load_lanes<L>(up.scales + column, lanes)));
      gate = Kind == Activation::silu ? vector_silu<L>(gate) : vector_gelu_tanh<L>(gate);
      store_lanes<L>(up.y + row * up.y_stride + column, L::mul(gate, y), lanes);
    });
  }
}

template <typename L, std::int32_t Offset>
void finish_gated_rows(const std::int32_t *gate_sums, const std::int32_t *up_sums, std::int64_t rows,
                       const float *gate_scales, Activation kind, const PanelOutput &up) {
  if (kind == Activation::silu) {
    finish_gated_rows<L, Offset, Activation::silu>(gate_sums, up_sums, rows, gate_scales, up);
  } else {
    finish_gated_rows<L, Offset, Activation::gelu_tanh>(gate_sums, up_sums, rows, gate_scales, up);
  }
}

template <typename L, std::int32_t Offset>
void finish_mix_rows(const std::int32_t *high, const std::int32_t *low, std::int64_t rows,
                     const std::int32_t *low_x_sums, const PanelOutput &given) {
  const PanelOutput out = given;
  for (std::int64_t row = 0; row < rows; ++row) {
    float *y = out.y + row * out.y_stride;
    over_columns<L>(out.columns, [&](int column, int lanes) {
      const std::int64_t at = row * kPanelRows + column;
      typename L::Float sum = L::mul(L::convert(high + at, Offset * out.x_sums[row]), L::set(256.0f));
      sum = L::add(sum, L::convert(low + at, Offset * low_x_sums[row]));
      sum = L::mul(sum, L::set(out.x_scales[row]));
      store_lanes<L>(y + column, L::add(load_lanes<L>(y + column, lanes), sum), lanes);
    });
  }
}

template <typename L>
void finish_float_rows(const float *sums, std::int64_t rows, const PanelOutput &given) {
  const PanelOutput out = given;
  for (std::int64_t row = 0; row < rows; ++row) {
    over_columns<L>(out.columns, [&](int column, int lanes) {
      typename L::Float x = L::load(sums + row * kPanelRows + column);
      if (out.scales) x = L::mul(x, load_lanes<L>(out.scales + column, lanes));
      store_sum<L>(out, row, column, lanes, x);
    });
  }
}

// rint(x) as the low bits of a float, for |x| < 2^22.
EK_VECTOR_INLINE std::uint32_t rounded_bits(float x) { return float_bits(x + kRounder); }

EK_VECTOR_INLINE void clear(std::int8_t *p, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) p[i] = 0;
}

// A row counts as zeros if the quotients with its largest magnitude would overflow.
constexpr float kSmallest = 1e-33f;
constexpr std::uint32_t kInfinity = 0x7f800000u;

// The largest magnitude of the values x(0..count) as bits: magnitudes are ordered as their bits, and what is not finite
// comes out largest.
template <typename Value>
EK_VECTOR_INLINE std::int32_t largest_bits(std::int64_t count, const Value &x) {
  std::int32_t largest = 0;
  for (std::int64_t k = 0; k < count; ++k) {
    const std::int32_t magnitude = static_cast<std::int32_t>(float_bits(x(k)) & 0x7fffffffu);
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

void quantize_one_row(const float *x, std::int64_t columns, std::int64_t stride, std::int8_t *codes, float *scale,
                      std::int32_t *sum) {
  const std::int32_t largest = largest_bits(columns, [&](std::int64_t k) { return x[k]; });
  const float most = float_of_bits(static_cast<std::uint32_t>(largest));
  const bool finite = static_cast<std::uint32_t>(largest) < kInfinity;
  std::int32_t total = 0;
  if (finite && most >= kSmallest) {
    const float factor = 127.0f / most;
    for (std::int64_t k = 0; k < columns; ++k) {
      // Two roundings of 2^-24 each cannot take 127 to 127.5.
      const std::int32_t code = static_cast<std::int8_t>(rounded_bits(x[k] * factor) & 0xffu);
      codes[k] = static_cast<std::int8_t>(code);
      total += code;
    }
    *scale = most / 127.0f;
  } else {
    clear(codes, columns);
    *scale = finite ? 0.0f : most;
  }
  clear(codes + columns, stride - columns);
  *sum = total;
}

// The largest number of steps: digits 127 and 127.
constexpr float kMostSteps = 127.0f * 256.0f + 127.0f;

// What is added before the lower eight bits are dropped: 0..255 in an order in which every stretch is spread evenly
// (the bits of the index reversed), so that a sum over a stretch is rounded to its value and not to zero.
struct Dither {
  std::uint8_t at[256];
};

constexpr Dither make_dither() {
  Dither dither{};
  for (int i = 0; i < 256; ++i) {
    int reversed = 0;
    for (int bit = 0; bit < 8; ++bit) reversed |= (i >> bit & 1) << (7 - bit);
    dither.at[i] = static_cast<std::uint8_t>(reversed);
  }
  return dither;
}

constexpr Dither kDither = make_dither();

bool split_one_row(const float *p, const float *scales, std::int64_t columns, std::int64_t stride, float fine_above,
                   std::int8_t *high, std::int8_t *low, float *step, std::int32_t *high_sum, std::int32_t *low_sum) {
  const std::int32_t largest = largest_bits(columns, [&](std::int64_t k) { return p[k] * scales[k]; });
  const float most = float_of_bits(static_cast<std::uint32_t>(largest));
  const bool finite = static_cast<std::uint32_t>(largest) < kInfinity;
  const std::int32_t weight = largest_bits(columns, [&](std::int64_t k) { return p[k]; });
  const bool fine = !(float_of_bits(static_cast<std::uint32_t>(weight)) <= fine_above);
  std::int32_t high_total = 0, low_total = 0;
  if (!finite || most < kSmallest) {
    clear(high, columns);
    if (fine) clear(low, columns);
    *step = finite ? 0.0f : most;
  } else {
    const float factor = kMostSteps / most;
    if (fine) {
      for (std::int64_t k = 0; k < columns; ++k) {
        // The low digit is what remains after rounding to a multiple of 256, so that it is within -128..127.
        const std::uint32_t steps = rounded_bits(p[k] * scales[k] * factor) & 0xffffu;
        const std::int32_t low_digit = static_cast<std::int8_t>(steps & 0xffu);
        const std::int32_t high_digit = static_cast<std::int8_t>(((steps + 0x80u) >> 8) & 0xffu);
        high[k] = static_cast<std::int8_t>(high_digit);
        low[k] = static_cast<std::int8_t>(low_digit);
        high_total += high_digit;
        low_total += low_digit;
      }
    } else {
      for (std::int64_t first = 0; first < columns; first += 256) {
        const std::int64_t count = columns - first < 256 ? columns - first : 256;
        for (std::int64_t i = 0; i < count; ++i) {
          const std::uint32_t bits = rounded_bits(p[first + i] * scales[first + i] * factor) & 0xffffu;
          const std::int32_t steps = static_cast<std::int16_t>(bits);
          const std::int32_t digit = (steps + kDither.at[i]) >> 8;
          const std::int32_t high_digit = digit > 127 ? 127 : digit;
          high[first + i] = static_cast<std::int8_t>(high_digit);
          high_total += high_digit;
        }
      }
    }
    *step = most / kMostSteps;
  }
  clear(high + columns, stride - columns);
  if (fine) clear(low + columns, stride - columns);
  *high_sum = high_total;
  *low_sum = low_total;
  return fine;
}

}  // namespace
}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_GEMM_ROWS_H
