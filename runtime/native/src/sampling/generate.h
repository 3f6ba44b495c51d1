// The denoising loops by name, as runtime/sampling/__init__.py.
#ifndef EDGEKIT_SAMPLING_GENERATE_H
#define EDGEKIT_SAMPLING_GENERATE_H

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "json.h"
#include "sampling/denoiser.h"
#include "sampling/events.h"
#include "sampling/options.h"

namespace edgekit {

// The alternative decides which loop runs.
using SamplerOptions = std::variant<DiffusionGemmaOptions, LladaOptions, DreamOptions>;

// Options of the sampler `name` ("diffusion_gemma", "llada", "dream"): those of `config`, then of `overrides`.
// Throws Error: EK_UNSUPPORTED_BUNDLE for another name, EK_INVALID_ARGUMENT for a bad option.
SamplerOptions sampler_options(const std::string &name, const OptionMembers &config, const OptionMembers &overrides);

// Of whichever alternative it is.
Lengths lengths(const SamplerOptions &options, std::int64_t prompt);
std::string new_tokens_text(const SamplerOptions &options, std::int64_t prompt);

// Runs the loop. Events go to `callback`, which may be empty; equal seeds give equal events, those of the Python loops.
// Throws Error: EK_INVALID_ARGUMENT (options, prompt) before the first pass, EK_NOT_FINITE, EK_STOPPED when the
// callback returned false, and what the denoiser throws. `generation` then holds what was reached.
void generate(Denoiser &denoiser, const std::vector<std::int64_t> &prompt, const SamplerOptions &options,
              std::uint64_t seed, const EventCallback &callback, Generation &generation);

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_GENERATE_H
