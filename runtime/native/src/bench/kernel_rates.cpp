#include "bench/kernel_rates.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

#include "kernels/attention.h"
#include "kernels/gemm.h"

namespace edgekit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMemoryBytes = std::size_t{256} << 20;
constexpr std::int64_t kWidth = 4096, kGroup = 32;  // of the matrices
constexpr std::int64_t kHeads = 32, kHeadDim = 128;
constexpr std::size_t kCodeBytes = kWidth * kWidth / 2, kScaleBytes = kWidth * kWidth / kGroup;

// The median of calls, each of `operations`, for about `seconds` behind one that does not count: what lasts, where the best
// would be a moment's, and what else runs for a moment has no part in it.
double median_rate(double operations, double seconds, const std::function<void()> &call) {
  call();
  std::vector<double> taken;
  const Clock::time_point started = Clock::now();
  Clock::time_point ended = started;
  do {
    const Clock::time_point begun = ended;
    call();
    ended = Clock::now();
    taken.push_back(std::chrono::duration<double>(ended - begun).count());
  } while (std::chrono::duration<double>(ended - started).count() < seconds);
  const auto middle = taken.begin() + static_cast<std::ptrdiff_t>(taken.size() / 2);
  std::nth_element(taken.begin(), middle, taken.end());
  return operations / *middle;
}

// Floats that are neither equal nor large.
void fill(float *values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 251) * 0.01f - 1.2f;
}

float *floats_of(const AlignedMemory &memory) { return reinterpret_cast<float *>(memory.data()); }

std::size_t float_bytes(std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float); }

}  // namespace

AlignedMemory large_memory() {
  AlignedMemory memory(kMemoryBytes);
  std::fill_n(memory.data(), memory.size(), std::uint8_t{1});
  return memory;
}

double product_rate(ThreadPool &pool, const AlignedMemory &memory, std::int64_t rows, double seconds) {
  const AlignedMemory x(float_bytes(rows * kWidth)), y(float_bytes(rows * kWidth)), scales(float_bytes(kWidth));
  const AlignedMemory codes(quantized_bytes(rows, kWidth)), scratch(gemm_scratch_bytes(pool.size()));
  fill(floats_of(x), rows * kWidth);
  fill(floats_of(scales), kWidth);
  const QuantizedRows rounded = quantize_rows(pool, floats_of(x), kWidth, rows, kWidth, codes.data());
  Matrix matrix;
  matrix.rows = matrix.columns = kWidth;
  matrix.bits = 4;
  matrix.group = kGroup;
  matrix.scales = floats_of(scales);
  std::size_t at = 0;
  return median_rate(2.0 * kWidth * kWidth * static_cast<double>(rows), seconds, [&] {
    matrix.codes = memory.data() + at;
    matrix.group_scales = matrix.codes + kCodeBytes;
    linear(pool, matrix, rounded, floats_of(y), kWidth, Addends{}, scratch.data());
    at += kCodeBytes + kScaleBytes;
    if (at + kCodeBytes + kScaleBytes > memory.size()) at = 0;
  });
}

double attention_rate(ThreadPool &pool, double seconds) {
  constexpr std::int64_t count = kManyRows * kHeads * kHeadDim;
  const AlignedMemory memory(float_bytes(4 * count)), scratch(attention_scratch_bytes(pool.size(), kHeadDim));
  fill(floats_of(memory), 3 * count);
  const auto heads = [&](int part) {
    Strided rows;
    rows.data = floats_of(memory) + part * count;
    const std::int64_t shape[] = {1, kHeads, kManyRows, kHeadDim};
    const std::int64_t stride[] = {count, kHeadDim, kHeads * kHeadDim, 1};
    std::copy_n(shape, 4, rows.shape);
    std::copy_n(stride, 4, rows.stride);
    return rows;
  };
  const std::vector<KeyPiece> keys{KeyPiece{heads(1), heads(2)}};
  return median_rate(4.0 * kManyRows * kManyRows * kHeads * kHeadDim, seconds,
                   [&] { attention(pool, heads(0), keys, nullptr, 0.1f, heads(3), scratch.data()); });
}

}  // namespace edgekit
