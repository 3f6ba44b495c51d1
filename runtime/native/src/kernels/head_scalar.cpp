// The vocabulary head on single numbers.
#include "kernels/head_rows.h"
#include "kernels/vector_math_scalar.h"

namespace edgekit {
namespace {

struct Lanes : ScalarLanes {
  EK_VECTOR_INLINE void transpose(float (&)[1]) {}
};

}  // namespace

const HeadKernels kHeadScalar = {"scalar", head_scale<Lanes>, head_largest<Lanes>, head_exponentials<Lanes>,
                                 head_drop<Lanes>, head_sample<Lanes>};

}  // namespace edgekit
