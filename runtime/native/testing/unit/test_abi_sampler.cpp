#include <cstring>
#include <vector>

#include "edgekit.h"
#include "unit.h"

namespace {

constexpr std::int64_t kVocabulary = 9;

ek_sampler_model masked_model() {
  ek_sampler_model model = EK_SAMPLER_MODEL_INIT;
  model.vocabulary = kVocabulary;
  model.sampler = R"({"name": "dream", "config": {"mask_token_id": 8, "max_new_tokens": 3, "steps": 2}})";
  return model;
}

// The answer of a model that likes token 4 everywhere.
ek_status answer(ek_sampler *sampler, const ek_ask &ask) {
  const auto rows = static_cast<std::size_t>(ask.request.row_count);
  std::vector<std::int64_t> argmax(rows, 4);
  std::vector<float> others(rows, 0.1f), entropy(rows, 0.3f), log_z(rows, 2.0f);
  ek_head_output output = EK_HEAD_OUTPUT_INIT;
  output.argmax = argmax.data();
  output.others = others.data();
  output.entropy = entropy.data();
  output.log_z = log_z.data();
  return ek_sampler_answer(sampler, &output);
}

}  // namespace

EK_TEST(abi_sampler_defaults_are_no_model) {
  const std::int64_t prompt[] = {1};
  ek_sampler_model model = EK_SAMPLER_MODEL_INIT;
  ek_sampler *sampler = nullptr;
  EK_CHECK(ek_sampler_create(&model, prompt, 1, nullptr, &sampler) == EK_INVALID_ARGUMENT && sampler == nullptr);
  EK_CHECK(std::strstr(ek_last_error(), "ek_sampler_model.vocabulary is 0") != nullptr);
}

EK_TEST(abi_sampler_is_driven_to_its_end) {
  const std::int64_t prompt[] = {1, 2};
  const ek_sampler_model model = masked_model();
  ek_sampler *sampler = nullptr;
  EK_CHECK(ek_sampler_create(&model, prompt, 2, nullptr, &sampler) == EK_OK);
  std::vector<std::int64_t> committed;
  ek_ask ask{};
  ask.struct_size = sizeof ask;
  for (int drafts = 0;;) {
    EK_CHECK(ek_sampler_next(sampler, &ask) == EK_OK);
    if (ask.kind == EK_ASK_DONE) break;
    if (ask.kind == EK_ASK_DENOISE || ask.kind == EK_ASK_PROJECT) EK_CHECK(answer(sampler, ask) == EK_OK);
    if (ask.kind == EK_ASK_DRAFT) EK_CHECK(ask.step == ++drafts && ask.count == 3);
    if (ask.kind == EK_ASK_COMMITTED) committed.insert(committed.end(), ask.ids, ask.ids + ask.count);
  }
  EK_CHECK(committed == std::vector<std::int64_t>(3, 4));
  ek_generation_statistics statistics{};
  statistics.struct_size = sizeof statistics;
  EK_CHECK(ek_sampler_get_statistics(sampler, &statistics) == EK_OK);
  EK_CHECK(statistics.finish_reason == EK_FINISH_LENGTH && statistics.committed_tokens == 3);
  EK_CHECK(statistics.seconds == 0);
  ek_sampler_close(sampler);
}
