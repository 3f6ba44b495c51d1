#include "cpu.h"

#include <cstring>
#include <initializer_list>

namespace edgekit {
namespace {

#if defined(__x86_64__) || defined(_M_X64) || defined(__aarch64__) || defined(_M_ARM64)
bool has_cpu_features(std::initializer_list<const char *> names) noexcept {
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
#endif

}  // namespace

bool can_use_instruction_set(const char *name) noexcept {
  const auto is = [name](const char *other) { return std::strcmp(name, other) == 0; };
  // Everything that the compiler may use in such a file.
#if defined(__x86_64__) || defined(_M_X64)
  // Every processor with avx512vl has avx512dq.
  if (is("avx512")) return has_cpu_features({"avx512f", "avx512bw", "avx512vl", "avx512_vnni", "fma"});
  if (is("avxvnni")) return has_cpu_features({"avx_vnni", "avx2", "fma", "f16c"});
  if (is("shani")) return has_cpu_features({"sse4_2", "sha_ni"});
  if (is("avx2")) return has_cpu_features({"avx2", "fma", "f16c"});
#elif defined(__aarch64__) || defined(_M_ARM64)
  if (is("i8mm")) return has_cpu_features({"i8mm", "dotprod"});
  if (is("dotprod")) return has_cpu_features({"dotprod"});
  if (is("sha2")) return has_cpu_features({"sha2"});
  if (is("neon")) return true;
#endif
  return is("scalar");
}

}  // namespace edgekit
