#include "abi_caller_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "abi_generation.h"
#include "error.h"

namespace edgekit {
namespace {

// What ek_callback_failed was told on this thread and no failure has taken yet.
std::string &told() {
  thread_local std::string text;
  return text;
}

// Throws Error (EK_CALLBACK_FAILED) with the caller's text unless `call` returns 0.
template <typename Call>
void call_back(const char *name, const Call &call) {
  told().clear();  // a text of an earlier callback that went on after all
  const std::int32_t code = call();
  if (code == 0) return;
  const std::string text = std::move(told());
  told().clear();
  if (!text.empty()) throw Error(EK_CALLBACK_FAILED, text);
  fail(EK_CALLBACK_FAILED, "ek_model.", name, " returned ", code,
       " and gave no reason; let it return ek_callback_failed(text)");
}

void check_fact(const char *name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return;
  fail(EK_INVALID_ARGUMENT, "ek_model.", name, " is ", value, "; it must be ", least, "..", most);
}

void check_callback(const char *name, bool given) {
  if (!given) fail(EK_INVALID_ARGUMENT, "ek_model.", name, " is null; give a callback");
}

// A NaN that no computation makes, in floats that are still to be filled.
float unset() {
  constexpr std::uint32_t kBits = 0x7fed5e75u;
  float value;
  std::memcpy(&value, &kBits, sizeof value);
  return value;
}

bool is_unset(float value) {
  const float mark = unset();
  return std::memcmp(&value, &mark, sizeof value) == 0;
}

// Arrays for a callback to fill, and whether it did.
class Answer {
 public:
  Answer(const char *name, std::int64_t rows, std::int64_t vocabulary)
      : name_(name), rows_(rows), vocabulary_(vocabulary) {}

  template <typename Number>
  Number *room(std::vector<Number> &values, bool wanted, std::int64_t width, Number mark) const {
    if (!wanted) return nullptr;
    values.assign(static_cast<std::size_t>(rows_ * width), mark);
    return values.data();
  }
  std::int64_t *ids(std::vector<std::int64_t> &values, bool wanted = true, std::int64_t width = 1) const {
    return room(values, wanted, width, std::int64_t{-1});
  }
  float *numbers(std::vector<float> &values, bool wanted = true, std::int64_t width = 1) const {
    return room(values, wanted, width, unset());
  }

  // Throw Error (EK_CALLBACK_FAILED).
  void check_ids(const char *array, const std::vector<std::int64_t> &values) const {
    const auto bad = std::find_if(values.begin(), values.end(),
                                  [&](std::int64_t token) { return token < 0 || token >= vocabulary_; });
    if (bad == values.end()) return;
    fail(EK_CALLBACK_FAILED, "ek_model.", name_, " gave or left token ", *bad, " in ek_head_output.", array,
         "; the vocabulary has ", vocabulary_, " tokens");
  }
  void check_numbers(const char *array, const std::vector<float> &values) const {
    if (std::none_of(values.begin(), values.end(), [](float value) { return std::isnan(value); })) return;
    fail(EK_CALLBACK_FAILED, "ek_model.", name_, " gave NaN in ek_head_output.", array,
         ", or left some of it as it was; fill all of it");
  }

 private:
  const char *name_;
  std::int64_t rows_, vocabulary_;
};

}  // namespace

CallerModel::CallerModel(const ek_model &model) : model_(model), prefix_length_(model.prefix_length) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();  // products of two of them are sizes
  if (model.reserved != 0) fail(EK_INVALID_ARGUMENT, "ek_model.reserved is ", model.reserved, "; set it to 0");
  check_fact("vocabulary", model.vocabulary, 1, kMost);
  check_fact("hidden_size", model.hidden_size, 0, kMost);
  check_fact("canvas_length", model.canvas_length, 0, kMost);
  check_fact("max_positions", model.max_positions, 0, std::numeric_limits<std::int64_t>::max());
  check_fact("prefix_length", model.prefix_length, 0, kMost);
  check_fact("uncached_count", model.uncached_count, 0, kMost);
  if (model.uncached_count > 0 && model.uncached == nullptr) {
    fail(EK_INVALID_ARGUMENT, "ek_model.uncached is null, but uncached_count is ", model.uncached_count);
  }
  check_callback("denoise", model.denoise != nullptr);
  check_callback("reset", model.reset != nullptr || model.prefill == nullptr);
  if (model.uncached_count > 0) Denoiser::keep({model.uncached, model.uncached + model.uncached_count});
}

void CallerModel::reset() {
  if (model_.reset != nullptr) call_back("reset", [&] { return model_.reset(model_.user_data); });
  prefix_length_ = 0;
}

void CallerModel::keep(std::vector<std::int64_t> ids) {
  Denoiser::keep(std::move(ids));
  if (model_.keep == nullptr) return;
  const std::vector<std::int64_t> &now = uncached();
  call_back("keep", [&] {
    return model_.keep(now.empty() ? nullptr : now.data(), static_cast<std::int64_t>(now.size()), model_.user_data);
  });
}

void CallerModel::prefill(const std::int64_t *ids, std::int64_t count) {
  if (model_.prefill == nullptr) {
    fail(EK_INVALID_ARGUMENT,
         "ek_model.prefill is null, but the loop of ek_model.sampler encodes text; give a callback");
  }
  const std::int64_t before = std::exchange(prefix_length_, 0);  // a prefill that fails forgets the prefix
  call_back("prefill", [&] { return model_.prefill(ids, count, model_.user_data); });
  prefix_length_ = before + count;
}

HeadResult CallerModel::denoise(const std::int64_t *ids, std::int64_t count, const HeadRequest &request,
                                const float *soft) {
  positions_ = count;
  return answer("denoise", request, [&](const ek_head_request *wanted, const ek_head_output *output) {
    return model_.denoise(ids, count, soft, wanted, output, model_.user_data);
  });
}

HeadResult CallerModel::project(const HeadRequest &request) {
  return answer("project", request, [&](const ek_head_request *wanted, const ek_head_output *output) {
    return model_.project(wanted, output, model_.user_data);
  });
}

HeadResult CallerModel::answer(const char *name, const HeadRequest &request, const HeadCall &call) const {
  const std::int64_t rows = request.row_count(positions_);
  const bool sampled = request.gumbel.has_value(), soft = request.soft;
  const ek_head_request wanted = request_for(request, rows);

  HeadResult result;
  const Answer arrays(name, rows, model_.vocabulary);
  ek_head_output output = EK_HEAD_OUTPUT_INIT;
  output.argmax = arrays.ids(result.argmax);
  output.others = arrays.numbers(result.others);
  output.entropy = arrays.numbers(result.entropy);
  output.log_z = arrays.numbers(result.log_z);
  output.sample = arrays.ids(result.sample, sampled);
  output.sample_prob = arrays.numbers(result.sample_prob, sampled);
  output.soft = arrays.numbers(result.soft, soft, model_.hidden_size);
  output.top_ids = arrays.ids(result.top_ids, request.top_k > 0, request.top_k);
  output.top_z = arrays.numbers(result.top_z, request.top_k > 0, request.top_k);
  output.logits = arrays.numbers(result.logits, request.logits, model_.vocabulary);
  call_back(name, [&] { return call(&wanted, &output); });

  if (std::any_of(result.log_z.begin(), result.log_z.end(), is_unset)) arrays.check_numbers("log_z", result.log_z);
  // Scores that are not finite have a message of their own in the loops, and leave no particular values elsewhere.
  if (!std::all_of(result.log_z.begin(), result.log_z.end(), [](float z) { return std::isfinite(z); })) return result;
  arrays.check_ids("argmax", result.argmax);
  arrays.check_ids("sample", result.sample);
  arrays.check_ids("top_ids", result.top_ids);
  arrays.check_numbers("others", result.others);
  arrays.check_numbers("entropy", result.entropy);
  arrays.check_numbers("sample_prob", result.sample_prob);
  arrays.check_numbers("soft", result.soft);
  arrays.check_numbers("top_z", result.top_z);
  arrays.check_numbers("logits", result.logits);
  return result;
}

}  // namespace edgekit

ek_status ek_callback_failed(const char *message) noexcept {
  std::string &text = edgekit::told();
  try {
    text = message == nullptr ? "" : message;
  } catch (...) {
    text.clear();  // no memory: the failure gets the text of one without a reason
  }
  return EK_CALLBACK_FAILED;
}
