#include "executor/weights.h"

#include <sstream>

#include "error.h"

namespace edgekit {
namespace {

// A sum of that many products of 8-bit integers fits 32 bits.
constexpr std::int64_t kMaxExactColumns = 60000;

std::int64_t divided_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::string text(const std::vector<std::int64_t> &shape) {
  std::ostringstream out;
  out << '[';
  for (std::size_t i = 0; i < shape.size(); ++i) out << (i != 0 ? ", " : "") << shape[i];
  out << ']';
  return out.str();
}

// The tensor of that name, with its type and shape checked. FlashLayout has checked that it lies within the run.
const Tensor &expect(const Run &run, const std::string &name, const char *dtype,
                     const std::vector<std::int64_t> &shape) {
  const Tensor *tensor = run.find(name);
  if (tensor == nullptr) {
    fail(EK_MALFORMED_FILE, "run ", run.name, " has no tensor ", name,
         ", which its program names; export the bundle again");
  }
  if (tensor->dtype != dtype || tensor->shape != shape) {
    fail(EK_MALFORMED_FILE, "run ", run.name, ": tensor ", name, " is ", tensor->dtype, " ", text(tensor->shape),
         ", its program wants ", dtype, " ", text(shape), "; export the bundle again");
  }
  return *tensor;
}

}  // namespace

WeightLayout::WeightLayout(const Run &run, const std::vector<WeightShape> &wanted) {
  entries_.reserve(wanted.size());
  for (const WeightShape &weight : wanted) {
    Entry entry;
    if (!weight.is_matrix) {
      const Tensor *tensor = run.find(weight.name);
      if (tensor == nullptr || tensor->dtype != "F32" ||
          tensor->bytes != 4 * static_cast<std::uint64_t>(weight.count)) {
        fail(EK_MALFORMED_FILE, "run ", run.name, " has no F32 tensor ", weight.name, " of ", weight.count,
             " values, which its program names; export the bundle again");
      }
      entry.codes = tensor->offset;
      entries_.push_back(entry);
      continue;
    }
    Matrix &form = entry.form;
    form.rows = weight.rows;
    form.columns = weight.columns;
    const std::int64_t panels = divided_up(form.rows, kPanelRows);
    const std::string &name = weight.name;
    if (run.find(name + ".packed") != nullptr) {
      form.bits = 4;
      if (form.columns % (2 * kQuad) != 0) {
        fail(EK_MALFORMED_FILE, "run ", run.name, ": matrix ", name, " has ", form.columns,
             " columns in 4 bits, not a multiple of ", 2 * kQuad);
      }
      entry.codes =
          expect(run, name + ".packed", "U8", {panels, form.columns / (2 * kQuad), kPanelRows, kQuad}).offset;
      const Tensor *groups = run.find(name + ".group_scales");
      const std::int64_t count = groups != nullptr && groups->shape.size() == 3 ? groups->shape[1] : 0;
      if (count < 1 || form.columns % count != 0) {
        fail(EK_MALFORMED_FILE, "run ", run.name, ": matrix ", name, " has no group scales that divide its ",
             form.columns, " columns; export the bundle again");
      }
      form.group = form.columns / count;
      if (form.group < 16 || (form.group & (form.group - 1)) != 0) {
        fail(EK_MALFORMED_FILE, "run ", run.name, ": matrix ", name, " has groups of ", form.group,
             " columns; they must be a power of two and at least 16");
      }
      entry.group_scales = expect(run, name + ".group_scales", "U8", {panels, count, kPanelRows}).offset;
    } else if (run.find(name + ".codes") != nullptr) {
      form.bits = 8;
      entry.codes =
          expect(run, name + ".codes", "U8", {panels, divided_up(form.columns, kQuad), kPanelRows, kQuad}).offset;
    } else {
      form.bits = 16;
      entry.codes = expect(run, name + ".weight", "BF16", {form.rows, form.columns}).offset;
    }
    if (form.bits < 16) {
      entry.scales = expect(run, name + ".scales", "F32", {panels * kPanelRows}).offset;
      if (form.columns > kMaxExactColumns) {
        fail(EK_UNSUPPORTED_BUNDLE, "run ", run.name, ": matrix ", name, " has ", form.columns,
             " columns; products of rounded activations are exact up to ", kMaxExactColumns);
      }
    }
    entries_.push_back(entry);
  }
}

bool WeightLayout::same_form(std::size_t a, std::size_t b) const {
  const Matrix &x = entries_[a].form, &y = entries_[b].form;
  return x.rows == y.rows && x.columns == y.columns && x.bits == y.bits && x.group == y.group;
}

BoundWeights::BoundWeights(const WeightLayout &layout, const std::uint8_t *data) {
  matrices_.reserve(layout.entries_.size());
  for (const WeightLayout::Entry &entry : layout.entries_) {
    Matrix matrix = entry.form;
    matrix.codes = data + entry.codes;
    if (matrix.bits == 4) matrix.group_scales = data + entry.group_scales;
    if (matrix.bits == 4 || matrix.bits == 8) matrix.scales = reinterpret_cast<const float *>(data + entry.scales);
    matrices_.push_back(matrix);
  }
}

TableLayout::TableLayout(const Run &run, std::int64_t rows, std::int64_t columns, int bits) {
  form.rows = rows;
  form.columns = columns;
  form.bits = bits;
  if (bits == 8) {
    codes = expect(run, "codes", "U8", {rows, columns}).offset;
    scales = expect(run, "scales", "F32", {rows}).offset;
  } else {
    codes = expect(run, "weight", "BF16", {rows, columns}).offset;
  }
}

Table TableLayout::bind(const std::uint8_t *data) const {
  Table table = form;
  table.codes = data + codes;
  if (form.bits == 8) table.scales = reinterpret_cast<const float *>(data + scales);
  return table;
}

}  // namespace edgekit
