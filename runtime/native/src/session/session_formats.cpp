#include "session/session_formats.h"

#include "onnx/qnn_executor.h"
#include "tvm/tvm_runtime.h"

namespace edgekit {

std::vector<const char *> session_formats() {
  std::vector<const char *> formats{"native"};
  if (tvm::is_loaded()) formats.push_back("tvm");
  if (qnn::is_loaded()) formats.push_back(qnn::kFormat);
  return formats;
}

}  // namespace edgekit
