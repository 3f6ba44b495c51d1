// The families' samplers by name, and a whole generation over a model.
#ifndef EDGEKIT_SAMPLING_GENERATE_H
#define EDGEKIT_SAMPLING_GENERATE_H

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sampling/denoiser.h"
#include "sampling/options.h"
#include "sampling/sampler.h"

namespace edgekit {

// The alternative decides which procedure runs.
using SamplerOptions = std::variant<DiffusionGemmaOptions, LladaOptions, DreamOptions, BlockOptions>;

// Options of the sampler `name` ("diffusion_gemma", "llada", "dream", "block") for one generation: the checkpoint's config,
// then the caller's wishes, then what neither says. `canvas_length` is the model's; 0: any. Throws Error:
// EK_UNSUPPORTED_BUNDLE for another name, EK_INVALID_ARGUMENT for a bad option.
SamplerOptions sampler_options(const std::string &name, const OptionMembers &config, const OptionMembers &wishes,
                               std::int64_t canvas_length);

// Throws Error (EK_INVALID_ARGUMENT) for a wish, of those that gave `options`, that changes nothing beside the others.
void check_used(SamplerOptions options, const std::string &name, const OptionMembers &config, const OptionMembers &wishes,
                std::int64_t canvas_length);

// Of whichever alternative it is.
OptionFields fields(SamplerOptions &options);
bool draws(const SamplerOptions &options);
Lengths lengths(const SamplerOptions &options, std::int64_t prompt);
std::string new_tokens_text(const SamplerOptions &options, std::int64_t prompt);

// Throws Error (EK_INVALID_ARGUMENT) for options that the model cannot follow.
void check_model(const SamplerOptions &options, const SamplerModel &model);

// Equal seeds give equal events. Throws Error (EK_INVALID_ARGUMENT) for options or a prompt that do not fit the model.
std::unique_ptr<Sampler> sampler(const SamplerOptions &options, SamplerModel model,
                                 const std::vector<std::int64_t> &prompt, std::uint64_t seed);

// One without a prompt, for load_sampler(). Throws Error (EK_INVALID_ARGUMENT).
std::unique_ptr<Sampler> sampler(const SamplerOptions &options, SamplerModel model);

// The sampler that was saved, on the way to restore what a session has to hold (see Sampler::restore): it goes on to the
// same tokens. `model` is that of the session that answers, where its prefix does not matter. The state may come from
// anybody. Throws Error: EK_MALFORMED_FILE, EK_UNSUPPORTED_VERSION, EK_CHECKSUM_MISMATCH, EK_INVALID_ARGUMENT for a state
// of another bundle.
std::unique_ptr<Sampler> load_sampler(std::string_view state, SamplerModel model, const std::string &bundle);

// What a denoiser is to a sampler.
SamplerModel model_of(const Denoiser &denoiser);

// Looks at an answer, and throws Error for one that no pass gives.
using CheckAnswer = std::function<void(HeadResult &answer)>;

// Does the pass that a sampler asks for, and goes on with the answer; false where it asks for something else. After a
// failure it asks the same again.
bool answer(Sampler &sampler, Denoiser &denoiser, const CheckAnswer &check = nullptr);

// A draft, committed tokens or the end, which live until the callback returns. Returns whether to go on; ignored for
// the end.
using EventCallback = std::function<bool(const Ask &event, const Stats &stats)>;

// Does what the sampler asks until it is done. Throws Error: EK_NOT_FINITE, EK_STOPPED when the callback, which may be
// empty, returned false, and what the denoiser throws. The sampler's counters say what was reached.
void run(Sampler &sampler, Denoiser &denoiser, const EventCallback &callback);

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_GENERATE_H
