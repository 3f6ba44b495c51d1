#include "sampling/denoiser.h"

namespace edgekit {

void Denoiser::forget() {
  reset();
  if (!uncached_.empty()) keep({});
}

void Denoiser::encode(const std::int64_t *ids, std::int64_t count) {
  const bool wrong = count < 0 || (count > 0 && ids == nullptr);  // prefill says what is
  if (uncached_.empty() || wrong) return prefill(ids, count);
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
