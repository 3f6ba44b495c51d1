// Which of the *_avx512.cpp, *_avx2.cpp and NEON versions of the float kernels this process may use.
#ifndef EDGEKIT_KERNELS_VECTOR_SET_H
#define EDGEKIT_KERNELS_VECTOR_SET_H

#include <cstddef>
#include <initializer_list>

namespace edgekit {

// Whether the processor has all of the features (names of cpu_feature_name).
bool has_cpu_features(std::initializer_list<const char *> names);

// "avx512", "avx2", "neon", "scalar": whether this process may use that version.
bool can_use_vector_set(const char *name);

}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_VECTOR_SET_H
