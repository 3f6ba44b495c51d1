// The functions of edgekit.h about ONNX models and ONNX Runtime.
#include <string>
#include <string_view>

#include "abi_guard.h"
#include "edgekit.h"
#include "onnx/program_check.h"
#include "onnx/qnn_executor.h"

using namespace edgekit;

ek_status ek_qnn_load(const ek_qnn_options *options) noexcept {
  return guarded([&] {
    const ek_qnn_options given = read_struct<ek_qnn_options>(options, ek_qnn_options{}, "ek_qnn_options");
    if (given.reserved != 0) fail(EK_INVALID_ARGUMENT, "ek_qnn_options.reserved is ", given.reserved, "; set it to 0");
    qnn::Libraries wanted;
    const auto take = [](std::string &to, const char *from) {
      if (from != nullptr) to = from;
    };
    take(wanted.onnxruntime, given.onnxruntime);
    take(wanted.provider, given.provider);
    take(wanted.backend, given.backend);
    take(wanted.chip, given.chip);
    take(wanted.soc_model, given.soc_model);
    qnn::load(wanted);
  });
}

ek_status ek_onnx_check(const void *model, uint64_t bytes, const char *format) noexcept {
  return guarded([&] {
    if (model == nullptr || format == nullptr) fail(EK_INVALID_ARGUMENT, "the model or its format is null");
    check_onnx(std::string_view(static_cast<const char *>(model), static_cast<std::size_t>(bytes)), format);
  });
}
