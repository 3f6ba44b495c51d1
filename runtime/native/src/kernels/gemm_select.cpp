// Which instruction set the products use: the best that the processor and the operating system offer.
#include <atomic>
#include <cstring>

#include "cpu.h"
#include "error.h"
#include "kernels/gemm.h"
#include "kernels/gemm_kernels.h"

namespace edgekit {
namespace {

struct Candidate {
  const GemmKernels *kernels;
  const char *instruction_set;  // see cpu.h
};

// Best first. The last needs nothing. Every processor with AVX-512 VNNI has AVX-512 DQ.
constexpr Candidate kCandidates[] = {
#if defined(__x86_64__) || defined(_M_X64)
    {&kGemmAvx512, "avx512"},
    {&kGemmAvxVnni, "avxvnni"},
    {&kGemmAvx2, "avx2"},
#elif defined(__aarch64__) || defined(_M_ARM64)
    {&kGemmI8mm, "i8mm"},
    {&kGemmDotprod, "dotprod"},
#endif
    {&kGemmScalar, "scalar"},
};
constexpr std::size_t kCount = sizeof kCandidates / sizeof kCandidates[0];

struct Usable {
  const GemmKernels *kernels[kCount + 1] = {};
  const char *names[kCount + 1] = {};

  Usable() {
    std::size_t count = 0;
    for (const Candidate &candidate : kCandidates) {
      if (!can_use_instruction_set(candidate.instruction_set)) continue;
      kernels[count] = candidate.kernels;
      names[count++] = candidate.kernels->name;
    }
  }
};

const Usable &usable_sets() {
  static const Usable sets;
  return sets;
}

std::atomic<const GemmKernels *> forced{nullptr};

}  // namespace

const GemmKernels &gemm_kernels() {
  const GemmKernels *chosen = forced.load(std::memory_order_relaxed);
  return chosen ? *chosen : *usable_sets().kernels[0];
}

const char *const *gemm_instruction_sets() { return usable_sets().names; }

void gemm_use_instruction_set(const char *name) {
  if (!name) {
    forced = nullptr;
    return;
  }
  for (const GemmKernels *const *kernels = usable_sets().kernels; *kernels; ++kernels) {
    if (std::strcmp((*kernels)->name, name) == 0) {
      forced = *kernels;
      return;
    }
  }
  fail(EK_INVALID_ARGUMENT, "this processor has no instruction set \"", name, "\" for products");
}

}  // namespace edgekit
