// What a caller of the C ABI gives to a generation, checked and settled, and its counters.
#ifndef EDGEKIT_ABI_GENERATION_H
#define EDGEKIT_ABI_GENERATION_H

#include <cstdint>
#include <vector>

#include "edgekit.h"
#include "json.h"
#include "sampling/generate.h"

namespace edgekit {

// What a bundle says about generations.
struct GenerationFacts {
  const Json &sampler;                                 // the manifest's section
  std::int64_t canvas_length = 0, max_positions = 0;  // 0: any, unknown
};

// Throws Error: EK_INVALID_ARGUMENT, and EK_MALFORMED_FILE and EK_UNSUPPORTED_BUNDLE for the facts.
SamplerOptions options_of(const ek_generate_options &given, const GenerationFacts &facts);

// The prompt as samplers take it. Throws Error (EK_INVALID_ARGUMENT).
std::vector<std::int64_t> prompt_of(const std::int64_t *ids, std::int64_t count);

// What the generation takes. Throws Error: EK_INVALID_ARGUMENT where the options leave the prompt no room,
// EK_PROMPT_TOO_LONG where it passes the model's positions.
Lengths checked_lengths(const SamplerOptions &options, const GenerationFacts &facts, const SamplerModel &model,
                        std::int64_t prompt);

// A request of a sampler as the C ABI has it, for `rows` rows; it points into `request`.
ek_head_request request_for(const HeadRequest &request, std::int64_t rows);

// EK_FINISH_...
std::int32_t finish_reason(FinishReason reason);

ek_generation_statistics statistics_of(const Stats &stats, std::int32_t reason);

}  // namespace edgekit

#endif  // EDGEKIT_ABI_GENERATION_H
