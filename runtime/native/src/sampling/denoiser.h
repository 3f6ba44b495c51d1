// What a denoising loop sees of a model, as runtime/sampling/types.py.
#ifndef EDGEKIT_SAMPLING_DENOISER_H
#define EDGEKIT_SAMPLING_DENOISER_H

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/head.h"

namespace edgekit {

// What to compute from z = logits / temperature for some rows of the canvas.
struct HeadRequest {
  bool all_rows = true;
  std::vector<std::int64_t> rows;  // unless all_rows; results come in this order
  float temperature = 1.0f;
  std::optional<GumbelDraw> gumbel;  // over the requested rows, not the canvas
  bool soft = false;
  std::int64_t top_k = 0;
  float *logits = nullptr;  // [rows, vocabulary] or null
};

class Denoiser {
 public:
  virtual ~Denoiser() = default;

  virtual std::int64_t vocabulary() const = 0;
  virtual std::int64_t hidden_size() const = 0;
  virtual std::int64_t prefix_length() const = 0;

  // Forgets the prefix.
  virtual void reset() = 0;

  // Causal pass over ids that appends their KV to the prefix.
  virtual void prefill(const std::int64_t *ids, std::int64_t count) = 0;

  // Text behind the prefix that is final and that no prefill has encoded: the end of the last answer. Loops of families
  // with a causal prefix leave it here, because encoding it takes a pass that only a conversation needs.
  const std::vector<std::int64_t> &uncached() const { return uncached_; }
  virtual void keep(std::vector<std::int64_t> ids) { uncached_ = std::move(ids); }

  // Forgets all text.
  void forget();

  // Prefills what is uncached, and ids behind it. A prefix that is lost with a failure takes the former with it.
  void encode(const std::int64_t *ids, std::int64_t count);

  // Bidirectional pass over [prefix KV ; canvas]. `soft` [count, hidden] is the last step's soft embedding or null.
  virtual HeadResult denoise(const std::int64_t *ids, std::int64_t count, const HeadRequest &request,
                             const float *soft) = 0;

  // The answer that the last denoise would have given to this request. Where projects() is false it is not called: the
  // loops repeat the denoise instead.
  virtual HeadResult project(const HeadRequest &request) = 0;
  virtual bool projects() const { return true; }

 private:
  std::vector<std::int64_t> uncached_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_DENOISER_H
