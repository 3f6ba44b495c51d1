// What a caller of the C ABI asks of the vocabulary head.
#ifndef EDGEKIT_ABI_HEAD_H
#define EDGEKIT_ABI_HEAD_H

#include "edgekit.h"
#include "sampling/ask.h"

namespace edgekit {

// A request with the arrays that its results go to.
struct AskedHead {
  HeadRequest request;
  ek_head_output output;
};

// Null stands for the defaults. Throws Error (EK_INVALID_ARGUMENT), also for arrays of what is not asked for.
AskedHead asked_head(const ek_head_request *given, const ek_head_output *arrays);

void deliver(const HeadResult &result, const ek_head_output &output);

}  // namespace edgekit

#endif  // EDGEKIT_ABI_HEAD_H
