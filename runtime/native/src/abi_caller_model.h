// The model of a caller, behind the callbacks of ek_model, as the denoising loops see one.
#ifndef EDGEKIT_ABI_CALLER_MODEL_H
#define EDGEKIT_ABI_CALLER_MODEL_H

#include <cstdint>
#include <functional>
#include <vector>

#include "edgekit.h"
#include "sampling/denoiser.h"

namespace edgekit {

// Calls back on the thread that calls it. What a callback writes is checked: every array filled, ids of the vocabulary.
// Every member that calls back throws Error (EK_CALLBACK_FAILED).
class CallerModel : public Denoiser {
 public:
  // The callbacks and their user data must outlive this; the struct itself need not. Throws Error (EK_INVALID_ARGUMENT)
  // for facts that no model has and for callbacks that are missing.
  explicit CallerModel(const ek_model &model);

  std::int64_t vocabulary() const override { return model_.vocabulary; }
  std::int64_t hidden_size() const override { return model_.hidden_size; }
  std::int64_t prefix_length() const override { return prefix_length_; }
  bool projects() const override { return model_.project != nullptr; }
  void reset() override;
  void keep(std::vector<std::int64_t> ids) override;
  void prefill(const std::int64_t *ids, std::int64_t count) override;
  HeadResult denoise(const std::int64_t *ids, std::int64_t count, const HeadRequest &request,
                     const float *soft) override;
  HeadResult project(const HeadRequest &request) override;

 private:
  using HeadCall = std::function<std::int32_t(const ek_head_request *, const ek_head_output *)>;

  HeadResult answer(const char *name, const HeadRequest &request, const HeadCall &call) const;

  ek_model model_;
  std::int64_t prefix_length_;
  std::int64_t positions_ = 0;  // of the last denoise
};

}  // namespace edgekit

#endif  // EDGEKIT_ABI_CALLER_MODEL_H
