// The function of edgekit.h about TVM.
#include <string>

#include "abi_guard.h"
#include "edgekit.h"
#include "tvm/tvm_runtime.h"

using namespace edgekit;

ek_status ek_tvm_load(const char *ffi, const char *runtime) noexcept {
  return guarded([&] {
    const auto text = [](const char *given) { return given == nullptr ? std::string() : std::string(given); };
    tvm::load(text(ffi), text(runtime));
  });
}
