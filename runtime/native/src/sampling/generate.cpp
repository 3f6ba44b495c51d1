#include "sampling/generate.h"

#include <algorithm>
#include <utility>

#include "error.h"
#include "sampling/block.h"
#include "sampling/causal.h"
#include "sampling/diffusion_gemma.h"
#include "sampling/dream.h"
#include "sampling/llada.h"

namespace edgekit {
namespace {

void tell(Sampler &sampler, const EventCallback &callback) {
  if (!callback || callback(sampler.ask(), sampler.stats()) || sampler.ask().kind == AskKind::done) return;
  sampler.stop();
  fail(EK_STOPPED, "the generation was stopped by its callback after ", sampler.stats().denoising_steps,
       " denoising steps; what was committed stays readable");
}

// Another text gives other answers, and nobody could tell.
void check_text(const Ask &ask, const Denoiser &denoiser) {
  constexpr const char *kAdvice =
      ": drive it over the sequence that it was driven over, which nobody else changes meanwhile, or restore the sampler, "
      "which has its text encoded again";
  if (ask.prefix_length != denoiser.prefix_length())
    fail(EK_INVALID_STATE, "the sampler goes on behind ", ask.prefix_length, " encoded tokens, and ",
         denoiser.prefix_length(), " are there", kAdvice);
  const std::uint64_t there = denoiser.text();
  if (ask.text != kAnyText && there != kAnyText && ask.text != there)
    fail(EK_INVALID_STATE, "the sampler goes on behind a text of ", ask.prefix_length,
         " tokens, and another of that length is there", kAdvice);
}

}  // namespace

SamplerOptions sampler_options(const std::string &name, const OptionMembers &config, const OptionMembers &wishes,
                               std::int64_t canvas_length) {
  if (name == "diffusion_gemma") return DiffusionGemmaOptions::of(config, wishes, canvas_length);
  if (name == "llada") return LladaOptions::of(config, wishes);
  if (name == "dream") return DreamOptions::of(config, wishes);
  if (name == "block") return BlockOptions::of(config, wishes);
  fail(EK_UNSUPPORTED_BUNDLE, "no sampler for model family '", name,
       "'; supported: diffusion_gemma, llada, dream, block");
}

void check_used(SamplerOptions options, const std::string &name, const OptionMembers &config, const OptionMembers &wishes,
                std::int64_t canvas_length) {
  const OptionFields own = fields(options);
  const UnusedOptions unused = std::visit([](const auto &chosen) { return chosen.unused(); }, options);
  const auto reason = [&](const OptionMembers::value_type &wish) {
    const std::string_view of = find_field(own, wish.first)->name;
    return std::find_if(unused.begin(), unused.end(), [&](const auto &each) { return each.first == of; });
  };
  OptionMembers idle, others;
  for (const auto &wish : wishes) (wish.second->is_null() || reason(wish) == unused.end() ? others : idle).push_back(wish);
  if (idle.empty()) return;
  // What holds anyway may be said: options that were listed are options that can be given.
  SamplerOptions without = sampler_options(name, config, others, canvas_length);
  const OptionFields anyway = fields(without);
  for (const auto &wish : idle) {
    const std::string value = value_text(*find_field(own, wish.first));
    if (value_text(*find_field(anyway, wish.first)) == value) continue;
    fail(EK_INVALID_ARGUMENT, wish.first, " is ", value, ", which changes nothing ", reason(wish)->second, "; leave it out");
  }
}

OptionFields fields(SamplerOptions &options) {
  return std::visit([](auto &chosen) { return chosen.fields(); }, options);
}

bool draws(const SamplerOptions &options) {
  return std::visit([](const auto &chosen) { return chosen.draws(); }, options);
}

Lengths lengths(const SamplerOptions &options, std::int64_t prompt) {
  return std::visit([&](const auto &chosen) { return chosen.lengths(prompt); }, options);
}

std::string new_tokens_text(const SamplerOptions &options, std::int64_t prompt) {
  return std::visit([&](const auto &chosen) { return chosen.new_tokens_text(prompt); }, options);
}

void check_model(const SamplerOptions &options, const SamplerModel &model) {
  SamplerOptions copy = options;
  check_tokens(fields(copy), model.vocabulary);
  const auto *llada = std::get_if<LladaOptions>(&options);
  const auto *dream = std::get_if<DreamOptions>(&options);
  const bool logic = (llada != nullptr && llada->order == "logic") || (dream != nullptr && dream->order == "logic");
  if (logic && !model.role_head)
    fail(EK_INVALID_ARGUMENT, "order logic needs a role head, which this bundle does not have; train one for the checkpoint "
         "(edgekit.tools.train_roles) and export it again, or use order confidence");
}

std::unique_ptr<Sampler> sampler(const SamplerOptions &options, SamplerModel model,
                                 const std::vector<std::int64_t> &prompt, std::uint64_t seed) {
  std::unique_ptr<Sampler> own = sampler(options, std::move(model));
  own->begin(prompt, seed);
  return own;
}

std::unique_ptr<Sampler> sampler(const SamplerOptions &options, SamplerModel model) {
  check_model(options, model);
  if (const auto *gemma = std::get_if<DiffusionGemmaOptions>(&options))
    return std::make_unique<DiffusionGemmaSampler>(std::move(model), *gemma);
  if (const auto *llada = std::get_if<LladaOptions>(&options))
    return std::make_unique<LladaSampler>(std::move(model), *llada);
  if (const auto *block = std::get_if<BlockOptions>(&options)) {
    if (block->mode == "diffusion") return std::make_unique<BlockSampler>(std::move(model), *block);
    return std::make_unique<CausalSampler>(std::move(model), *block);
  }
  return std::make_unique<DreamSampler>(std::move(model), std::get<DreamOptions>(options));
}

SamplerModel model_of(const Denoiser &denoiser) {
  SamplerModel model;
  model.vocabulary = denoiser.vocabulary();
  model.hidden_size = denoiser.hidden_size();
  model.prefix_length = denoiser.prefix_length();
  model.prefix_block = denoiser.prefix_block();
  model.shift_logits = denoiser.shift_logits();
  model.role_head = denoiser.role_head();
  model.segments = denoiser.most_segments();
  model.uncached = denoiser.uncached();
  return model;
}

bool answer(Sampler &sampler, Denoiser &denoiser, const CheckAnswer &check) {
  const Ask &ask = sampler.ask();
  if (ask.kind == AskKind::crop && denoiser.prefix_length() > ask.prefix_length) denoiser.crop(ask.prefix_length);
  if (ask.kind == AskKind::crop) {
    sampler.next();
    return true;
  }
  if (ask.kind == AskKind::pass) {
    check_text(ask, denoiser);
    std::vector<HeadResult> found = denoiser.pass(ask.segments);
    for (HeadResult &each : found) {
      if (check) check(each);
    }
    // Whatever was uncached is among what was kept.
    const bool keeps = std::any_of(ask.segments.begin(), ask.segments.end(), [](const AskSegment &s) { return s.keep; });
    if (keeps) denoiser.keep({});
    sampler.next(std::move(found));
    sampler.set_pass(denoiser.last_pass());
    return true;
  }
  if (ask.kind != AskKind::denoise && ask.kind != AskKind::project) return false;
  check_text(ask, denoiser);
  HeadResult found;
  // More of a pass that another has followed, or that was answered elsewhere, is that of a pass of the same once more.
  const bool known = sampler.pass() != 0 && sampler.pass() == denoiser.last_pass();
  if (ask.kind == AskKind::denoise || !known) {
    found = denoiser.denoise(ask.ids.data(), static_cast<std::int64_t>(ask.ids.size()), ask.request,
                             ask.soft.empty() ? nullptr : ask.soft.data());
  } else {
    found = denoiser.project(ask.request);
  }
  if (check) check(found);
  sampler.next(std::move(found));
  sampler.set_pass(denoiser.last_pass());
  return true;
}

void run(Sampler &sampler, Denoiser &denoiser, const EventCallback &callback) {
  for (;;) {
    if (answer(sampler, denoiser)) continue;
    const Ask &ask = sampler.ask();
    switch (ask.kind) {
      case AskKind::forget:
        denoiser.forget();
        break;
      case AskKind::encode:
        check_text(ask, denoiser);
        denoiser.encode(ask.ids);
        break;
      case AskKind::denoise:
      case AskKind::project:
      case AskKind::pass:
      case AskKind::crop:
        break;  // they have been answered
      case AskKind::draft:
      case AskKind::committed:
      case AskKind::done:
        // Before the callback hears of it: where that stops, the conversation has it.
        if (!ask.kept.empty()) denoiser.keep(ask.kept);
        tell(sampler, callback);
        if (ask.kind == AskKind::done) return;
        break;
    }
    sampler.next();
  }
}

}  // namespace edgekit
