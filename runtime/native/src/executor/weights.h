// The weights of a program as a run stores them (layout `native-1`, see kernels/matrix.h).
#ifndef EDGEKIT_EXECUTOR_WEIGHTS_H
#define EDGEKIT_EXECUTOR_WEIGHTS_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "flash_layout.h"
#include "kernels/matrix.h"

namespace edgekit {

// A matrix [rows, columns], or a float tensor of `count` values.
struct WeightShape {
  std::string name;
  bool is_matrix = false;
  std::int64_t rows = 0, columns = 0, count = 0;
};

// Where a run holds the weights of a program, in the program's order. Checked once, when a bundle is opened, so that
// binding is a matter of adding offsets.
class WeightLayout {
 public:
  WeightLayout() = default;

  // Throws Error: EK_MALFORMED_FILE for a tensor that is missing or has another shape than the program's,
  // EK_UNSUPPORTED_BUNDLE for matrices beyond what the products compute exactly.
  WeightLayout(const Run &run, const std::vector<WeightShape> &wanted);

  std::size_t size() const noexcept { return entries_.size(); }

  // Bits per weight of a matrix; 0 for a float tensor.
  int bits(std::size_t weight) const { return entries_[weight].form.bits; }
  bool same_form(std::size_t a, std::size_t b) const;

 private:
  friend class BoundWeights;

  struct Entry {
    Matrix form;  // without its pointers
    std::uint64_t codes = 0, group_scales = 0, scales = 0;  // offsets in the run; `codes` of a float tensor too
  };

  std::vector<Entry> entries_;
};

// The same in memory.
class BoundWeights {
 public:
  // `data` is the run, 64-byte aligned; it must outlive this object.
  BoundWeights(const WeightLayout &layout, const std::uint8_t *data);

  // By place in the program's list.
  const Matrix &matrix(std::size_t weight) const { return matrices_[weight]; }
  const float *vector(std::size_t weight) const { return reinterpret_cast<const float *>(matrices_[weight].codes); }

 private:
  std::vector<Matrix> matrices_;
};

// The rows of a vocabulary table that a run holds. Throws Error (EK_MALFORMED_FILE).
struct TableLayout {
  TableLayout() = default;
  TableLayout(const Run &run, std::int64_t rows, std::int64_t columns, int bits);

  Table bind(const std::uint8_t *data) const;

  Table form;  // without its pointers
  std::uint64_t codes = 0, scales = 0;
};

}  // namespace edgekit

#endif  // EDGEKIT_EXECUTOR_WEIGHTS_H
