// AArch64 feature detection: the auxiliary vector on Linux and Android, sysctl on Apple systems.
#if defined(__aarch64__) || defined(_M_ARM64)

#include "cpu.h"

#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace edgekit {
namespace {

constexpr const char *kNames[] = {"neon", "dotprod", "i8mm", "sve", "sha2"};

enum Feature : unsigned { kNeon, kDotprod, kI8mm, kSve, kSha2, kFeatureCount };
static_assert(sizeof(kNames) / sizeof(kNames[0]) == kFeatureCount, "one name per feature");

#if defined(__APPLE__)
// Keys that a system does not know are features that it does not have (Apple, "Determining instruction set
// characteristics").
bool sysctl_flag(const char *key) noexcept {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(key, &value, &size, nullptr, 0) == 0 && value != 0;
}
#endif

}  // namespace

std::uint64_t detect_cpu_features() noexcept {
  std::uint64_t found = 0;
  const auto set = [&found](Feature feature, bool present) noexcept {
    if (present) found |= std::uint64_t{1} << feature;
  };
#if defined(__linux__)
  // The kernel's bit numbers (arch/arm64/include/uapi/asm/hwcap.h), written out because old NDK and glibc headers
  // lack the later ones.
  const unsigned long hwcap = getauxval(AT_HWCAP);
  const unsigned long hwcap2 = getauxval(AT_HWCAP2);
  set(kNeon, (hwcap >> 1) & 1);
  set(kDotprod, (hwcap >> 20) & 1);
  set(kI8mm, (hwcap2 >> 13) & 1);
  set(kSve, (hwcap >> 22) & 1);
  set(kSha2, (hwcap >> 6) & 1);
#elif defined(__APPLE__)
  set(kNeon, true);  // part of every Apple arm64 processor
  set(kDotprod, sysctl_flag("hw.optional.arm.FEAT_DotProd"));
  set(kI8mm, sysctl_flag("hw.optional.arm.FEAT_I8MM"));
  set(kSha2, sysctl_flag("hw.optional.arm.FEAT_SHA256"));
#else
  set(kNeon, true);  // part of the AArch64 procedure call standard; the rest is unknown here, hence not claimed
#endif
  return found;
}

std::size_t cpu_feature_count() noexcept { return kFeatureCount; }

const char *cpu_feature_name(std::size_t index) noexcept { return kNames[index]; }

}  // namespace edgekit

#endif
