// What the processor of this machine can do. One implementation file per architecture, chosen by the compiler's
// own macros rather than by CMake, because one macOS build may compile for two architectures.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edgekit {

// A feature is a bit of the mask that `detect_cpu_features` returns; bit i belongs to `cpu_feature_name(i)`.
// No allocation anywhere, so that nothing here can throw across the C ABI.
std::uint64_t detect_cpu_features() noexcept;
std::size_t cpu_feature_count() noexcept;
const char *cpu_feature_name(std::size_t index) noexcept;

// Whether this process may call what is compiled in files named *_<name>.cpp (CMakeLists.txt has their flags):
// "avx512", "avxvnni", "avx2", "shani", "i8mm", "dotprod", "sha2"; "neon" and "scalar" are the baseline of their architectures.
bool can_use_instruction_set(const char *name) noexcept;

}  // namespace edgekit
