// The denoising loop of DiffusionGemma: entropy-bounded acceptance over a canvas of random tokens. Token for token that
// of runtime/sampling/diffusion_gemma.py, which describes it.
#ifndef EDGEKIT_SAMPLING_DIFFUSION_GEMMA_H
#define EDGEKIT_SAMPLING_DIFFUSION_GEMMA_H

#include <cstdint>
#include <vector>

#include "sampling/denoiser.h"
#include "sampling/events.h"
#include "sampling/options.h"

namespace edgekit {

// The denoiser then holds the prompt and the answer up to its end token, of which the last canvas is uncached.
// A draft per step, a committed event per canvas, done. Throws Error: bad options or prompt before the first pass,
// EK_NOT_FINITE, EK_STOPPED, and what the denoiser throws; `generation` is readable then.
void generate(Denoiser &denoiser, const std::vector<std::int64_t> &prompt, const DiffusionGemmaOptions &options,
              std::uint64_t seed, const EventCallback &callback, Generation &generation);

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_DIFFUSION_GEMMA_H
