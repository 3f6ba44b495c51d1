#include "kernels/float_rows.h"
#include "kernels/vector_math_avx2.h"

namespace edgekit {

const FloatKernels kFloatAvx2 = float_kernels_of<Avx2Lanes>("avx2", attention_avx2);

}  // namespace edgekit
