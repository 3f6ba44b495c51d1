// The denoising loop of LLaDA: masked tokens, unmasked by confidence, block after block. Token for token that of
// runtime/sampling/llada.py, which describes it.
#ifndef EDGEKIT_SAMPLING_LLADA_H
#define EDGEKIT_SAMPLING_LLADA_H

#include <cstdint>
#include <vector>

#include "sampling/denoiser.h"
#include "sampling/events.h"
#include "sampling/options.h"

namespace edgekit {

// A draft per step (the whole answer, masks where it is open), a committed event per block, done. Throws Error: bad
// options or prompt before the first pass, EK_NOT_FINITE, EK_STOPPED, and what the denoiser throws; `generation` is
// readable then.
void generate(Denoiser &denoiser, const std::vector<std::int64_t> &prompt, const LladaOptions &options,
              std::uint64_t seed, const EventCallback &callback, Generation &generation);

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_LLADA_H
