// x86-64 feature detection with cpuid and xgetbv. Bit positions: Intel 64 and IA-32 Architectures Software
// Developer's Manual, volume 2A, CPUID, and volume 1, section 13.2 (XCR0).
#if defined(__x86_64__) || defined(_M_X64) || defined(__i386__) || defined(_M_IX86)

#include "cpu.h"

#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif

namespace edgekit {
namespace {

// The spelling of Linux's /proc/cpuinfo, the list most people compare with.
constexpr const char *kNames[] = {
    "sse4_2",   "avx2",     "fma",         "f16c",        "avx_vnni", "avx512f",
    "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "amx_int8",
    "sha_ni",
};

enum Feature : unsigned {
  kSse42,
  kAvx2,
  kFma,
  kF16c,
  kAvxVnni,
  kAvx512f,
  kAvx512bw,
  kAvx512vl,
  kAvx512Vnni,
  kAvx512Bf16,
  kAmxInt8,
  kShaNi,
  kFeatureCount,
};
static_assert(sizeof(kNames) / sizeof(kNames[0]) == kFeatureCount, "one name per feature");

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All zero when the processor does not know the leaf, so that its bits read as "absent".
Registers cpuid(unsigned leaf, unsigned subleaf) noexcept {
  Registers out;
#if defined(_MSC_VER)
  int raw[4];
  __cpuid(raw, 0);
  if (static_cast<unsigned>(raw[0]) < leaf) return out;
  __cpuidex(raw, static_cast<int>(leaf), static_cast<int>(subleaf));
  out.eax = static_cast<unsigned>(raw[0]);
  out.ebx = static_cast<unsigned>(raw[1]);
  out.ecx = static_cast<unsigned>(raw[2]);
  out.edx = static_cast<unsigned>(raw[3]);
#else
  __get_cpuid_count(leaf, subleaf, &out.eax, &out.ebx, &out.ecx, &out.edx);
#endif
  return out;
}

// The register sets that the operating system saves on a context switch. Only callable when cpuid reports OSXSAVE.
std::uint64_t read_xcr0() noexcept {
#if defined(_MSC_VER)
  return _xgetbv(0);
#else
  // The instruction rather than _xgetbv, which GCC and Clang offer only to code compiled with -mxsave.
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
#endif
}

constexpr bool has(unsigned value, unsigned bit) noexcept { return ((value >> bit) & 1u) != 0; }

}  // namespace

std::uint64_t detect_cpu_features() noexcept {
  const Registers basic = cpuid(1, 0);
  const Registers extended = cpuid(7, 0);
  // Subleaf 1 exists only when subleaf 0 says so; older processors answer with the registers of subleaf 0.
  const Registers extended1 = extended.eax >= 1 ? cpuid(7, 1) : Registers{};

  const std::uint64_t saved = has(basic.ecx, 27) ? read_xcr0() : 0;
  constexpr std::uint64_t kAvxState = (1u << 1) | (1u << 2);
  constexpr std::uint64_t kAvx512State = kAvxState | (1u << 5) | (1u << 6) | (1u << 7);
  constexpr std::uint64_t kAmxState = (1u << 17) | (1u << 18);
  const bool avx = has(basic.ecx, 28) && (saved & kAvxState) == kAvxState;
  // macOS on Intel switches the AVX-512 state on at the first use and reports it as off until then: it reads as
  // absent here, which is safe.
  const bool avx512 = avx && has(extended.ebx, 16) && (saved & kAvx512State) == kAvx512State;
  const bool amx = has(extended.edx, 24) && (saved & kAmxState) == kAmxState;

  std::uint64_t found = 0;
  const auto set = [&found](Feature feature, bool present) noexcept {
    if (present) found |= std::uint64_t{1} << feature;
  };
  set(kSse42, has(basic.ecx, 20));
  set(kAvx2, avx && has(extended.ebx, 5));
  set(kFma, avx && has(basic.ecx, 12));
  set(kF16c, avx && has(basic.ecx, 29));
  set(kAvxVnni, avx && has(extended1.eax, 4));
  set(kAvx512f, avx512);
  set(kAvx512bw, avx512 && has(extended.ebx, 30));
  set(kAvx512vl, avx512 && has(extended.ebx, 31));
  set(kAvx512Vnni, avx512 && has(extended.ecx, 11));
  set(kAvx512Bf16, avx512 && has(extended1.eax, 5));
  set(kAmxInt8, amx && has(extended.edx, 25));
  set(kShaNi, has(extended.ebx, 29));
  return found;
}

std::size_t cpu_feature_count() noexcept { return kFeatureCount; }

const char *cpu_feature_name(std::size_t index) noexcept { return kNames[index]; }

}  // namespace edgekit

#endif
