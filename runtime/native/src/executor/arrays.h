// Shapes and memory layouts of a program's values, with the number of positions of a pass left open.
#ifndef EDGEKIT_EXECUTOR_ARRAYS_H
#define EDGEKIT_EXECUTOR_ARRAYS_H

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/float_ops.h"

namespace edgekit {

constexpr int kMaxRank = 4;
// Far beyond any model; products of four of them still fit 64 bits where they are checked one by one.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 31;

// A length or distance of `factor` elements times positions^power.
struct Extent {
  std::int64_t factor = 1;
  int power = 0;

  std::int64_t at(std::int64_t positions) const noexcept;
};

inline bool operator==(const Extent &a, const Extent &b) { return a.factor == b.factor && a.power == b.power; }
inline bool operator!=(const Extent &a, const Extent &b) { return !(a == b); }

using Shape = std::vector<Extent>;

// A dense array: its strides are those of a contiguous array with its axes in some order.
struct Array {
  Shape shape, stride;

  int rank() const noexcept { return static_cast<int>(shape.size()); }
};

// Throws Error (EK_UNSUPPORTED_BUNDLE) for more than kMaxRank axes or kMaxElements per position; `where` is for
// the message.
Array contiguous(const Shape &shape, const std::string &where);

// Axes of length 1 may have any stride.
bool is_contiguous(const Array &array);

// Equal shape and equal strides: element i in memory is the same element in both.
bool same_layout(const Array &a, const Array &b);

Extent elements(const Shape &shape);
Array transposed(const Array &array, int a, int b);

// The shape that numpy gives to an operation on the two, or an empty one when they do not fit.
Shape broadcast(const Shape &a, const Shape &b);

// The array at `data` for a number of positions, with axes of length 1 in front.
Strided strided(const Array &array, float *data, std::int64_t positions);

// "[1, t, 64]"
std::string text(const Shape &shape);

}  // namespace edgekit

#endif  // EDGEKIT_EXECUTOR_ARRAYS_H
