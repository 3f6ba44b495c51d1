// Weights as the flash file stores them (layout `native-1`, see export/formats/native/layout.py), and
// activations rounded to int8.
#ifndef EDGEKIT_KERNELS_MATRIX_H
#define EDGEKIT_KERNELS_MATRIX_H

#include <cstdint>

namespace edgekit {

// Rows of a matrix that are stored together, and columns that are interleaved.
constexpr std::int64_t kPanelRows = 64;
constexpr std::int64_t kQuad = 4;

// A view of a stored matrix [rows, columns]: y = x @ matrix.T has `rows` columns. 64-byte aligned.
//   bits 8:  codes [panels, quads, 64, 4] (q + 128), scales [panels * 64]
//   bits 4:  codes [panels, columns / 8, 64, 4] (low nibble: even quads, high nibble: odd quads; q + 8),
//            group_scales [panels, columns / group, 64] in 1..15, scales [panels * 64]
//   bits 16: codes point at bfloat16 [rows, columns]
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  int bits = 0;
  std::int64_t group = 0;
  const std::uint8_t *codes = nullptr;
  const std::uint8_t *group_scales = nullptr;
  const float *scales = nullptr;
};

// Activations [rows, columns] rounded to int8 per row: x = scales[row] * codes. `stride` (bytes) is a multiple
// of 64, at least `columns`; the bytes in between are zero. `sums` are the sums of a row's codes.
struct QuantizedRows {
  std::int8_t *codes = nullptr;
  float *scales = nullptr;
  std::int32_t *sums = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;
};

// Rows of a vocabulary table [rows, columns], row-major: bits 8: codes q + 128 and scales [rows]; bits 16: bfloat16.
struct Table {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  int bits = 0;
  const std::uint8_t *codes = nullptr;
  const float *scales = nullptr;
};

enum class Activation { silu, gelu_tanh };

}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_MATRIX_H
