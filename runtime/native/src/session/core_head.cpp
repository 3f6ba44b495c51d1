#include "session/core_head.h"

#include <algorithm>

#include "error.h"
#include "executor/program.h"

namespace edgekit {
namespace {

class CoreScores final : public HeadScores {
 public:
  CoreScores(ThreadPool &pool, const float *x, std::int64_t rows, const Model &model, int bits,
             const std::unordered_map<const WeightUnit *, TableLayout> &tables, const HeadOptions &options)
      : tables_(tables), pass_(pool, x, rows, model.hidden, model.vocabulary, bits, options) {}

  void add(const BundleTile &tile, const LoadedUnit &weights) override {
    pass_.add(tile.first, tables_.at(tile.unit).bind(weights.data));
  }
  HeadResult result() override { return pass_.result(); }

 private:
  const std::unordered_map<const WeightUnit *, TableLayout> &tables_;
  HeadPass pass_;
};

}  // namespace

CoreHead::CoreHead(const Bundle &bundle, const Json &entry)
    : bundle_(bundle), softcap_(about_path(bundle.path(), [&] { return head_softcap(entry); })) {
  const Model &model = bundle.model();
  const auto add = [&](const std::vector<BundleTile> &tiles, int bits) {
    for (const BundleTile &tile : tiles) {
      tables_.emplace(tile.unit, TableLayout(*tile.unit->run, tile.tokens, model.hidden, bits));
    }
  };
  add(bundle.embedding(), model.embedding.bits);
  if (bundle.has_head()) add(bundle.scores(), model.head.bits);
}

std::uint64_t CoreHead::bytes(const EngineLengths &lengths, int threads) const {
  const Model &model = bundle_.model();
  const GumbelDraw draw;
  HeadOptions head;
  head.gumbel = &draw;
  head.soft = model.self_conditioning;
  head.top_k = std::min(kMostCandidates, model.vocabulary);
  return HeadPass::bytes(threads, lengths.head_rows, model.hidden, bundle_.largest_tile(), head) *
         static_cast<std::uint64_t>(lengths.segments);
}

std::unique_ptr<HeadScores> CoreHead::scores(ThreadPool &pool, const float *x, std::int64_t rows,
                                             const HeadRequest &request, float *logits) const {
  const Model &model = bundle_.model();
  HeadOptions wanted;
  wanted.temperature = request.temperature;
  wanted.softcap = softcap_;
  wanted.gumbel = request.gumbel ? &*request.gumbel : nullptr;
  wanted.soft = request.soft;
  wanted.top_k = std::min(request.top_k, model.vocabulary);
  wanted.logits = logits;
  const int bits = (model.tied ? model.embedding : model.head).bits;
  return std::make_unique<CoreScores>(pool, x, rows, model, bits, tables_, wanted);
}

}  // namespace edgekit
