#include "session/table_rows.h"

#include <cstring>
#include <string>

#include "error.h"
#include "kernels/float_ops.h"

namespace edgekit {
namespace {

float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 31u, fraction = half & 1023u;
  if (exponent == 0) {  // a subnormal: fraction * 2^-24
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const std::uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

TableForm::TableForm(const Run &run, std::int64_t rows, std::int64_t width) : columns(width) {
  const auto wrong = [&]() {
    fail(EK_MALFORMED_FILE, "run ", run.name, " holds no table of ", rows, " rows with ", width,
         " columns in a form that is known; export the bundle again");
  };
  const auto is = [](const Tensor *tensor, const char *dtype, std::initializer_list<std::int64_t> shape) {
    return tensor != nullptr && tensor->dtype == dtype && tensor->shape == std::vector<std::int64_t>(shape);
  };
  const Tensor *stored = run.find("codes"), *factors = run.find("scales");
  if (stored != nullptr) {
    if (!is(stored, "U8", {rows, width}) || !is(factors, "F32", {rows})) wrong();
    kind = Kind::codes;
    row_bytes = static_cast<std::size_t>(width);
    scale_bytes = sizeof(float);
  } else {
    stored = run.find("weight");
    if (is(stored, "BF16", {rows, width})) {
      row_bytes = 2 * static_cast<std::size_t>(width);
    } else {
      if (width % 4 != 0 || !is(stored, "U32", {rows, width / 4}) || factors == nullptr) wrong();
      if (factors->shape.size() != 2 || factors->shape[0] != rows || factors->shape[1] < 1) wrong();
      half_scales = factors->dtype == "F16";
      groups = factors->shape[1];
      if ((!half_scales && factors->dtype != "F32") || width % groups != 0) wrong();
      kind = Kind::groups;
      row_bytes = static_cast<std::size_t>(width);
      scale_bytes = static_cast<std::size_t>(groups) * (half_scales ? 2 : 4);
    }
  }
  codes = stored->offset;
  if (scale_bytes != 0) scales = factors->offset;
}

void TableForm::widen_row(const std::uint8_t *stored, const std::uint8_t *stored_scales, float *out) const {
  if (kind == Kind::bfloat16) return widen(reinterpret_cast<const std::uint16_t *>(stored), columns, out);
  const std::int64_t width = columns / groups;
  for (std::int64_t group = 0; group < groups; ++group) {
    float scale;
    if (half_scales) {
      std::uint16_t half;
      std::memcpy(&half, stored_scales + 2 * group, sizeof half);
      scale = half_to_float(half);
    } else {
      std::memcpy(&scale, stored_scales + 4 * group, sizeof scale);
    }
    for (std::int64_t i = group * width; i < (group + 1) * width; ++i) {
      out[i] = static_cast<float>(static_cast<int>(stored[i]) - 128) * scale;
    }
  }
}

EmbeddingRows::EmbeddingRows(const Bundle &bundle, const WeightStore &weights) : bundle_(bundle), weights_(weights) {
  for (const BundleTile &tile : bundle.embedding()) {
    forms_.emplace_back(*tile.unit->run, tile.tokens, bundle.model().hidden);
  }
}

void EmbeddingRows::row(std::int64_t id, float *out) {
  const std::size_t place = bundle_.model().embedding.tile_of(id);
  const BundleTile &tile = bundle_.embedding()[place];
  const TableForm &form = forms_[place];
  const std::uint64_t row = static_cast<std::uint64_t>(id - tile.first);
  const std::uint64_t codes = form.codes + row * form.row_bytes, scales = form.scales + row * form.scale_bytes;
  stored_.resize(form.row_bytes);
  scales_.resize(form.scale_bytes);
  if (const std::uint8_t *data = weights_.pinned(*tile.unit->run)) {
    std::memcpy(stored_.data(), data + codes, form.row_bytes);
    if (form.scale_bytes != 0) std::memcpy(scales_.data(), data + scales, form.scale_bytes);
  } else {
    FlashFile &file = bundle_.file();
    file.read_part(*tile.unit->run, codes, form.row_bytes, stored_.data());
    if (form.scale_bytes != 0) file.read_part(*tile.unit->run, scales, form.scale_bytes, scales_.data());
  }
  form.widen_row(stored_.data(), scales_.data(), out);
  const float scale = bundle_.model().embedding_scale;
  for (std::int64_t i = 0; i < form.columns; ++i) out[i] *= scale;
}

void EmbeddingRows::gather(const std::int64_t *ids, std::int64_t count, float *out) {
  const std::int64_t hidden = bundle_.model().hidden;
  std::unordered_map<std::int64_t, std::int64_t> known;  // a masked canvas is one token many times
  for (std::int64_t i = 0; i < count; ++i) {
    const auto [found, is_new] = known.emplace(ids[i], i);
    if (is_new) {
      row(ids[i], out + i * hidden);
    } else {
      std::memcpy(out + i * hidden, out + found->second * hidden, sizeof(float) * static_cast<std::size_t>(hidden));
    }
  }
}

}  // namespace edgekit
