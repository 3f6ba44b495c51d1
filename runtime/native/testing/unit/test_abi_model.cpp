#include <cstring>
#include <stdexcept>

#include "edgekit.h"
#include "unit.h"

namespace {

ek_model masked_model() {
  ek_model model = EK_MODEL_INIT;
  model.vocabulary = 9;
  model.sampler = R"({"name": "dream", "config": {"mask_token_id": 8, "max_new_tokens": 3, "steps": 2}})";
  return model;
}

}  // namespace

EK_TEST(abi_model_lets_no_exception_of_a_callback_through) {
  const std::int64_t prompt[] = {1, 2};
  ek_model model = masked_model();
  model.denoise = [](const int64_t *, int64_t, const float *, const ek_head_request *, const ek_head_output *,
                     void *) -> int32_t { throw std::runtime_error("a callback that breaks its contract"); };
  EK_CHECK(ek_model_generate(&model, prompt, 2, nullptr, nullptr, nullptr, nullptr) == EK_INTERNAL);
  EK_CHECK(std::strcmp(ek_last_error(), "a callback that breaks its contract") == 0);
  model.denoise = [](const int64_t *, int64_t, const float *, const ek_head_request *, const ek_head_output *,
                     void *) -> int32_t { throw 5; };
  EK_CHECK(ek_model_generate(&model, prompt, 2, nullptr, nullptr, nullptr, nullptr) == EK_INTERNAL);
}

EK_TEST(abi_model_defaults_are_no_model) {
  const std::int64_t prompt[] = {1};
  ek_model model = EK_MODEL_INIT;
  EK_CHECK(ek_model_generate(&model, prompt, 1, nullptr, nullptr, nullptr, nullptr) == EK_INVALID_ARGUMENT);
  model = masked_model();
  EK_CHECK(ek_model_generate(&model, prompt, 1, nullptr, nullptr, nullptr, nullptr) == EK_INVALID_ARGUMENT);
  EK_CHECK(std::strstr(ek_last_error(), "ek_model.denoise is null") != nullptr);
}
