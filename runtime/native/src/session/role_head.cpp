#include "session/role_head.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "bundle_folder.h"
#include "error.h"
#include "sampling/roles.h"

namespace edgekit {
namespace {

// Rows and columns of a product that are summed up together: a few vectors, which stay in the nearest cache.
constexpr std::int64_t kRowsAtOnce = 4, kColumnsAtOnce = 64;

std::int64_t weight_count(const Model &model) {
  return model.role_width * (model.hidden + 1) + (model.role_width + 1) * kRoles;
}

// y [rows, out] = x [rows, in] @ w [in, out] + bias. Whole columns go through the same additions wherever they are cut.
void product(const float *x, std::int64_t rows, std::int64_t in, const float *w, std::int64_t out, const float *bias, float *y) {
  for (std::int64_t row = 0; row < rows; row += kRowsAtOnce) {
    const std::int64_t row_stop = std::min(rows, row + kRowsAtOnce);
    for (std::int64_t first = 0; first < out; first += kColumnsAtOnce) {
      const std::int64_t count = std::min(out - first, kColumnsAtOnce);
      float sums[kRowsAtOnce][kColumnsAtOnce];
      for (std::int64_t r = row; r < row_stop; ++r) std::copy_n(bias + first, count, sums[r - row]);
      for (std::int64_t k = 0; k < in; ++k) {
        const float *weights = w + k * out + first;
        for (std::int64_t r = row; r < row_stop; ++r) {
          const float value = x[r * in + k];
          float *sum = sums[r - row];
          for (std::int64_t j = 0; j < count; ++j) sum[j] += value * weights[j];
        }
      }
      for (std::int64_t r = row; r < row_stop; ++r) std::copy_n(sums[r - row], count, y + r * out + first);
    }
  }
}

}  // namespace

RoleHead::RoleHead(const Bundle &bundle) : hidden_(bundle.model().hidden), width_(bundle.model().role_width) {
  const BundleFolder files(bundle.path());
  const std::string &name = bundle.model().role_file;
  const auto count = static_cast<std::uint64_t>(weight_count(bundle.model()));
  if (const std::uint64_t size = files.size_of(name); size != count * sizeof(float)) {
    fail(EK_MALFORMED_FILE, bundle.path(), ": ", name, " has ", size, " bytes; a role head of width ", width_, " over ", hidden_,
         " has ", count * sizeof(float), "; export the bundle again");
  }
  weights_.resize(static_cast<std::size_t>(count));
  files.read(name, weights_.data());
  if (!std::all_of(weights_.begin(), weights_.end(), [](float value) { return std::isfinite(value); })) {
    fail(EK_MALFORMED_FILE, bundle.path(), ": ", name, " holds what is not finite; export the bundle again");
  }
}

std::uint64_t RoleHead::bytes(const Model &model, std::int64_t rows) {
  if (model.role_width == 0) return 0;
  // A copy of the rows, where an engine has memory of its own, what comes of the first product, and the scores.
  const std::int64_t of_rows = rows * (model.hidden + model.role_width + 2 * kRoles);
  return sizeof(float) * static_cast<std::uint64_t>(weight_count(model) + of_rows);
}

std::vector<float> RoleHead::scores(const float *x, std::int64_t rows) const {
  const float *down = weights_.data(), *down_bias = down + hidden_ * width_;
  const float *up = down_bias + width_, *up_bias = up + width_ * kRoles;
  std::vector<float> inner(static_cast<std::size_t>(rows * width_)), out(static_cast<std::size_t>(rows * kRoles));
  product(x, rows, hidden_, down, width_, down_bias, inner.data());
  for (float &value : inner) value = value > 0 ? value : 0.0f;
  product(inner.data(), rows, width_, up, kRoles, up_bias, out.data());
  return out;
}

}  // namespace edgekit
