#include "sampling/denoiser.h"

namespace edgekit {

void Denoiser::forget() {
  reset();
  if (!uncached_.empty()) keep({});
}

void Denoiser::encode(const std::int64_t *ids, std::int64_t count) {
  if (uncached_.empty()) return prefill(ids, count);
  std::vector<std::int64_t> all = uncached_;
  if (count > 0) all.insert(all.end(), ids, ids + count);
  try {
    prefill(all.data(), static_cast<std::int64_t>(all.size()));
  } catch (...) {
    if (prefix_length() == 0) keep({});
    throw;
  }
  keep({});
}

}  // namespace edgekit
