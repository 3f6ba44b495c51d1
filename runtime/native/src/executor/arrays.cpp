#include "executor/arrays.h"

#include <algorithm>
#include <sstream>

#include "error.h"

namespace edgekit {
namespace {

bool is_one(const Extent &extent) { return extent == Extent{}; }

}  // namespace

std::int64_t Extent::at(std::int64_t positions) const noexcept {
  std::int64_t value = factor;
  for (int i = 0; i < power; ++i) value *= positions;
  return value;
}

Extent elements(const Shape &shape) {
  Extent product;
  for (const Extent &axis : shape) {
    product.factor *= axis.factor;
    product.power += axis.power;
  }
  return product;
}

Array contiguous(const Shape &shape, const std::string &where) {
  if (shape.size() > kMaxRank) {
    fail(EK_UNSUPPORTED_BUNDLE, where, ": an array of ", shape.size(), " axes; this library goes up to ", kMaxRank);
  }
  Array array{shape, Shape(shape.size())};
  Extent distance;
  for (std::size_t i = shape.size(); i-- > 0;) {
    array.stride[i] = distance;
    distance.factor *= shape[i].factor;
    distance.power += shape[i].power;
    // Two axes of positions would need memory that grows with their square; no program has them.
    if (shape[i].factor > kMaxElements || distance.factor > kMaxElements || distance.power > 1) {
      fail(EK_UNSUPPORTED_BUNDLE, where, ": an array of shape ", text(shape), " is too large");
    }
  }
  return array;
}

bool is_contiguous(const Array &array) {
  Extent distance;
  for (int i = array.rank(); i-- > 0;) {
    if (is_one(array.shape[i])) continue;
    if (array.stride[i] != distance) return false;
    distance.factor *= array.shape[i].factor;
    distance.power += array.shape[i].power;
  }
  return true;
}

bool same_layout(const Array &a, const Array &b) {
  if (a.shape != b.shape) return false;
  for (int i = 0; i < a.rank(); ++i) {
    if (!is_one(a.shape[i]) && a.stride[i] != b.stride[i]) return false;
  }
  return true;
}

Array transposed(const Array &array, int a, int b) {
  Array out = array;
  std::swap(out.shape[a], out.shape[b]);
  std::swap(out.stride[a], out.stride[b]);
  return out;
}

Shape broadcast(const Shape &a, const Shape &b) {
  Shape out(std::max(a.size(), b.size()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    // Axes are matched from the last one.
    const Extent x = i < a.size() ? a[a.size() - 1 - i] : Extent{};
    const Extent y = i < b.size() ? b[b.size() - 1 - i] : Extent{};
    if (x != y && !is_one(x) && !is_one(y)) return {};
    out[out.size() - 1 - i] = is_one(x) ? y : x;
  }
  return out;
}

Strided strided(const Array &array, float *data, std::int64_t positions) {
  Strided out;
  out.data = data;
  const int missing = kMaxRank - array.rank();
  for (int i = 0; i < array.rank(); ++i) {
    out.shape[missing + i] = array.shape[i].at(positions);
    out.stride[missing + i] = array.stride[i].at(positions);
  }
  // Nothing moves along the axes in front; a whole array is a valid distance for any reader.
  for (int i = 0; i < missing; ++i) out.stride[i] = elements(array.shape).at(positions);
  return out;
}

std::string text(const Shape &shape) {
  std::ostringstream out;
  out << '[';
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) out << ", ";
    if (shape[i].power == 0) {
      out << shape[i].factor;
    } else if (shape[i].factor == 1) {
      out << 't';
    } else {
      out << shape[i].factor << "t";
    }
  }
  out << ']';
  return out.str();
}

}  // namespace edgekit
