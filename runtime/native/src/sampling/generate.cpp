#include "sampling/generate.h"

#include "error.h"
#include "sampling/diffusion_gemma.h"
#include "sampling/dream.h"
#include "sampling/llada.h"

namespace edgekit {

SamplerOptions sampler_options(const std::string &name, const Json &config, const Json &overrides) {
  if (name == "diffusion_gemma") return DiffusionGemmaOptions::from_json(config, overrides);
  if (name == "llada") return LladaOptions::from_json(config, overrides);
  if (name == "dream") return DreamOptions::from_json(config, overrides);
  fail(EK_UNSUPPORTED_BUNDLE, "no sampler for model family '", name, "'; supported: diffusion_gemma, llada, dream");
}

SamplerOptions sampler_options(const Json &section, const Json &overrides) {
  return sampler_options(section.at("name").string(), section.at("config"), overrides);
}

void generate(Denoiser &denoiser, const std::vector<std::int64_t> &prompt, const SamplerOptions &options,
              std::uint64_t seed, const EventCallback &callback, Generation &generation) {
  std::visit([&](const auto &chosen) { generate(denoiser, prompt, chosen, seed, callback, generation); }, options);
}

}  // namespace edgekit
