#if defined(__aarch64__) || defined(_M_ARM64)

#include "kernels/float_rows.h"
#include "kernels/vector_math_neon.h"

namespace edgekit {

const FloatKernels kFloatNeon = float_kernels_of<NeonLanes>("neon", attention_neon);

}  // namespace edgekit

#endif
