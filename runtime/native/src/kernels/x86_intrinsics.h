// <immintrin.h> without a false alarm: gcc 12 warns of "uninitialized" operands inside its own AVX-512 intrinsics
// (gcc bug 105593). Include this instead.
#ifndef EDGEKIT_KERNELS_X86_INTRINSICS_H
#define EDGEKIT_KERNELS_X86_INTRINSICS_H

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif  // EDGEKIT_KERNELS_X86_INTRINSICS_H
