#include "sampling/denoiser.h"

namespace edgekit {

void Denoiser::forget() {
  reset();
  keep({});
}

void Denoiser::encode(const std::vector<std::int64_t> &ids) {
  try {
    prefill(ids.data(), static_cast<std::int64_t>(ids.size()));
  } catch (...) {
    if (prefix_length() == 0) keep({});
    throw;
  }
  keep({});
}

void Denoiser::encode_behind(const std::int64_t *ids, std::int64_t count) {
  const bool wrong = count < 0 || (count > 0 && ids == nullptr);  // prefill says what is
  if (uncached_.empty() || wrong) return prefill(ids, count);
  std::vector<std::int64_t> all = uncached_;
  if (count > 0) all.insert(all.end(), ids, ids + count);
  encode(all);
}

}  // namespace edgekit
