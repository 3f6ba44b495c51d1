// Architectures without a file of their own: no feature is claimed.
#if !(defined(__x86_64__) || defined(_M_X64) || defined(__i386__) || defined(_M_IX86) || \
      defined(__aarch64__) || defined(_M_ARM64))

#include "cpu.h"

namespace edgekit {

std::uint64_t detect_cpu_features() noexcept { return 0; }

std::size_t cpu_feature_count() noexcept { return 0; }

const char *cpu_feature_name(std::size_t) noexcept { return ""; }

}  // namespace edgekit

#endif
