// A model as whoever drives a sampler sees it.
#ifndef EDGEKIT_SAMPLING_DENOISER_H
#define EDGEKIT_SAMPLING_DENOISER_H

#include <cstdint>
#include <utility>
#include <vector>

#include "sampling/ask.h"
#include "sampling/text_number.h"

namespace edgekit {

class Denoiser {
 public:
  virtual ~Denoiser() = default;

  virtual std::int64_t vocabulary() const = 0;
  virtual std::int64_t hidden_size() const = 0;
  virtual std::int64_t prefix_length() const = 0;
  virtual std::int64_t prefix_block() const { return 1; }
  virtual bool shift_logits() const { return false; }
  virtual bool role_head() const { return false; }
  virtual std::int64_t most_segments() const { return 0; }  // of a pass; 0: any number

  // Forgets the prefix.
  virtual void reset() = 0;

  // Causal pass over ids that appends their KV to the prefix.
  virtual void prefill(const std::int64_t *ids, std::int64_t count) = 0;

  // Text behind the prefix that is final and that no prefill has encoded: the end of the last answer. Samplers of
  // families with a causal prefix leave it here, because encoding it takes a pass that only a conversation needs.
  const std::vector<std::int64_t> &uncached() const { return uncached_; }
  void keep(std::vector<std::int64_t> ids) { uncached_ = std::move(ids); }

  // Forgets all text.
  void forget();

  // Prefills ids, which begin with what is uncached. A prefix that is lost with a failure takes that with it.
  void encode(const std::vector<std::int64_t> &ids);

  // Prefills what is uncached, and ids behind it. As encode().
  void encode_behind(const std::int64_t *ids, std::int64_t count);

  // Bidirectional pass over [prefix KV ; canvas]. `soft` [count, hidden] is the last step's soft embedding or null.
  virtual HeadResult denoise(const std::int64_t *ids, std::int64_t count, const HeadRequest &request,
                             const float *soft) = 0;

  // The answer that the last denoise would have given to this request.
  virtual HeadResult project(const HeadRequest &request) = 0;

  // The number of the text that is encoded, see text_number.h.
  virtual std::uint64_t text() const { return kAnyText; }

  // One pass for all of them: the answers to those that have a request, in their order. For families with a prefix.
  virtual std::vector<HeadResult> pass(const std::vector<AskSegment> &segments) = 0;

  // Forgets what is kept at and behind position `length`, and what is uncached.
  virtual void crop(std::int64_t length) = 0;

  // A number for the pass that project() looks at, which no other pass of this process has; 0: there was none.
  virtual std::uint64_t last_pass() const = 0;

 private:
  std::vector<std::int64_t> uncached_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_DENOISER_H
