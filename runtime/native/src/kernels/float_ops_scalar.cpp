#include "kernels/float_rows.h"
#include "kernels/vector_math_scalar.h"

namespace edgekit {

const FloatKernels kFloatScalar = float_kernels_of<ScalarLanes>("scalar", attention_scalar);

}  // namespace edgekit
