// The denoising loop of Dream: masked tokens anywhere in the answer, unmasked in one of four orders. Token for token
// that of runtime/sampling/dream.py, which describes it.
#ifndef EDGEKIT_SAMPLING_DREAM_H
#define EDGEKIT_SAMPLING_DREAM_H

#include <cstdint>
#include <vector>

#include "sampling/denoiser.h"
#include "sampling/events.h"
#include "sampling/options.h"

namespace edgekit {

// A draft per step that unmasks something, one committed event, done. Throws Error: bad options or prompt before the
// first pass, EK_NOT_FINITE, EK_STOPPED, and what the denoiser throws; `generation` is readable then.
void generate(Denoiser &denoiser, const std::vector<std::int64_t> &prompt, const DreamOptions &options,
              std::uint64_t seed, const EventCallback &callback, Generation &generation);

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_DREAM_H
