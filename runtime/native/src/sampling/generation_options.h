// A generation's options: the checkpoint's configuration, the caller's wishes, and what neither says. The rule of
// runtime/sampling/generation_options.py, which describes it.
#ifndef EDGEKIT_SAMPLING_GENERATION_OPTIONS_H
#define EDGEKIT_SAMPLING_GENERATION_OPTIONS_H

#include <cstdint>
#include <optional>
#include <string>

#include "sampling/generate.h"
#include "sampling/options.h"

namespace edgekit {

// What a caller wants; `options` are sampler options by name, which win over the checkpoint's, and the others win
// over both.
struct GenerationWishes {
  std::optional<std::int64_t> max_new_tokens;
  std::optional<std::int64_t> steps;
  OptionMembers options;
};

// The options of the sampler `name` for one generation. `config` is the checkpoint's, `canvas_length` the model's (0:
// any). Throws Error as sampler_options.
SamplerOptions generation_options(const std::string &name, const OptionMembers &config, std::int64_t canvas_length,
                                  const GenerationWishes &wishes);

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_GENERATION_OPTIONS_H
