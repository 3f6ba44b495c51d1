#include "kernels/vector_set.h"

#include <cstdint>
#include <cstring>

#include "cpu.h"

namespace edgekit {

bool has_cpu_features(std::initializer_list<const char *> names) {
  const std::uint64_t found = detect_cpu_features();
  for (const char *name : names) {
    bool present = false;
    for (std::size_t i = 0; i < cpu_feature_count() && !present; ++i) {
      present = ((found >> i) & 1) != 0 && std::strcmp(cpu_feature_name(i), name) == 0;
    }
    if (!present) return false;
  }
  return true;
}

bool can_use_vector_set(const char *name) {
#if defined(__x86_64__) || defined(_M_X64)
  // Everything that the compiler may use in such a file; every processor with avx512vl has avx512dq.
  if (std::strcmp(name, "avx512") == 0) {
    return has_cpu_features({"avx512f", "avx512bw", "avx512vl", "avx512_vnni", "fma"});
  }
  if (std::strcmp(name, "avx2") == 0) return has_cpu_features({"avx2", "fma", "f16c"});
#elif defined(__aarch64__) || defined(_M_ARM64)
  if (std::strcmp(name, "neon") == 0) return true;
#endif
  return std::strcmp(name, "scalar") == 0;
}

}  // namespace edgekit
