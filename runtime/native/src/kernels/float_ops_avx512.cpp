#include "kernels/float_rows.h"
#include "kernels/vector_math_avx512.h"

namespace edgekit {

const FloatKernels kFloatAvx512 = float_kernels_of<Avx512Lanes>("avx512", attention_avx512);

}  // namespace edgekit
