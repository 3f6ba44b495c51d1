#include "sampling/generate.h"

#include "error.h"
#include "sampling/diffusion_gemma.h"
#include "sampling/dream.h"
#include "sampling/llada.h"

namespace edgekit {

SamplerOptions sampler_options(const std::string &name, const OptionMembers &config, const OptionMembers &overrides) {
  if (name == "diffusion_gemma") return DiffusionGemmaOptions::from_members(config, overrides);
  if (name == "llada") return LladaOptions::from_members(config, overrides);
  if (name == "dream") return DreamOptions::from_members(config, overrides);
  fail(EK_UNSUPPORTED_BUNDLE, "no sampler for model family '", name, "'; supported: diffusion_gemma, llada, dream");
}

Lengths lengths(const SamplerOptions &options, std::int64_t prompt) {
  return std::visit([&](const auto &chosen) { return chosen.lengths(prompt); }, options);
}

std::string new_tokens_text(const SamplerOptions &options, std::int64_t prompt) {
  return std::visit([&](const auto &chosen) { return chosen.new_tokens_text(prompt); }, options);
}

void generate(Denoiser &denoiser, const std::vector<std::int64_t> &prompt, const SamplerOptions &options,
              std::uint64_t seed, const EventCallback &callback, Generation &generation) {
  std::visit([&](const auto &chosen) { generate(denoiser, prompt, chosen, seed, callback, generation); }, options);
}

}  // namespace edgekit
