#include "session/experts.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <utility>

namespace edgekit {
namespace {

// Passes after which use is known well enough to act on it, and then to look at it again.
constexpr std::uint64_t kPassesCounted = 16;
// An exchange reads a run once, and saves that in every pass that uses the run and not the one that gives up its
// memory. It is made where that is one pass of so many, hence has paid for itself after as many passes.
constexpr std::uint64_t kPaysWithin = 4;
// Share of what a pass streams that is read for exchanges at a time: nobody waits long for them, and where chance alone
// made the difference they cost less than a hundredth of the reading.
constexpr std::uint64_t kExchangeShare = 8;
// Streamed experts that are computed together take at most this share of the ring.
constexpr std::uint64_t kBatchShare = 4;

}  // namespace

Experts::Experts(const Bundle &bundle, WeightStore &weights, const ResidencyPlan &plan)
    : bundle_(bundle), weights_(weights) {
  follow(plan);
  for (const BundleChunk &chunk : bundle.chunks()) {
    layers_.emplace_back();
    layers_.back().counts.resize(chunk.experts.size());
    for (std::size_t e = 0; e < chunk.experts.size(); ++e) places_.emplace(chunk.experts[e]->run, e);
  }
}

void Experts::follow(const ResidencyPlan &plan) {
  batch_bytes_ = plan.ring_bytes / kBatchShare;
  most_exchanged_ = plan.streamed_bytes / kExchangeShare;
}

void Experts::append_runs(std::size_t chunk, std::vector<const Run *> &out) const {
  const std::vector<Count> &counts = layers_[chunk].counts;
  std::vector<std::size_t> order(counts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return counts[a].passes > counts[b].passes; });
  for (const std::size_t e : order) out.push_back(bundle_.chunks()[chunk].experts[e]->run);
}

void Experts::each(std::size_t chunk, const std::vector<std::int64_t> &rows,
                   const std::function<void(const std::vector<LoadedExpertUnit> &)> &use) {
  Layer &own = layers_[chunk];
  const std::vector<const WeightUnit *> &experts = bundle_.chunks()[chunk].experts;
  const auto loaded = [&](std::size_t e, const std::uint8_t *data) { return LoadedExpertUnit{e, {experts[e], data}}; };
  std::vector<LoadedExpertUnit> batch;
  std::size_t streamed = 0;
  for (std::size_t e = 0; e < experts.size(); ++e) {
    own.counts[e].rows += static_cast<std::uint64_t>(rows[e]);
    own.counts[e].passes += rows[e] != 0;
    const bool stays = weights_.stays(*experts[e]->run);
    if (!stays) ++streamed;
    if (stays && rows[e] != 0) batch.push_back(loaded(e, weights_.pinned(*experts[e]->run)));
  }
  ++own.passes;

  std::vector<const Run *> wanted, unwanted;
  for (const Run *run : weights_.next(streamed)) (rows[places_.at(run)] != 0 ? wanted : unwanted).push_back(run);
  weights_.skip(unwanted);
  if (!batch.empty()) use(batch);
  for (auto next = wanted.begin(); next != wanted.end();) {
    batch.clear();
    std::deque<WeightStore::Use> taken;
    std::uint64_t bytes = 0;
    do {
      const Run &run = **next++;
      taken.emplace_back(weights_, run);
      batch.push_back(loaded(places_.at(&run), taken.back().data()));
      bytes += run.length;
    } while (next != wanted.end() && bytes < batch_bytes_ && weights_.ready(**next));
    use(batch);
  }
}

void Experts::exchange() {
  std::uint64_t passes = 0;  // layers differ where one failed
  for (const Layer &layer : layers_) passes = std::max(passes, layer.passes);
  if (passes < exchanged_at_ + kPassesCounted) return;
  exchanged_at_ = passes;
  weights_.exchange(exchanges());
}

ExpertUse Experts::use(std::size_t chunk, std::size_t expert) const {
  const Layer &own = layers_.at(chunk);
  const Count &count = own.counts.at(expert);
  const bool stays = weights_.stays(*bundle_.chunks()[chunk].experts[expert]->run);
  return {count.rows, count.passes, own.passes - count.passes, stays};
}

// Where memory is worth more to a streamed expert of a layer than to a pinned one, the best of them first.
std::vector<Exchange> Experts::exchanges() const {
  struct Gain {
    Exchange exchange;
    std::uint64_t passes;
  };
  std::vector<Gain> gains;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto run = [&](std::size_t e) { return bundle_.chunks()[i].experts[e]->run; };
    const auto passes = [&](std::size_t e) { return layers_[i].counts[e].passes; };
    std::map<std::uint64_t, std::vector<std::size_t>> lengths;  // memory of one run holds another of its length
    for (std::size_t e = 0; e < layers_[i].counts.size(); ++e) {
      if (!weights_.kept(*run(e))) lengths[run(e)->length].push_back(e);
    }
    for (auto &[length, experts] : lengths) {
      const auto streamed = std::stable_partition(experts.begin(), experts.end(),
                                                  [&](std::size_t e) { return weights_.pinned(*run(e)) != nullptr; });
      std::stable_sort(experts.begin(), streamed, [&](std::size_t a, std::size_t b) { return passes(a) < passes(b); });
      std::stable_sort(streamed, experts.end(), [&](std::size_t a, std::size_t b) { return passes(a) > passes(b); });
      auto out = experts.begin();
      for (auto in = streamed; in != experts.end() && out != streamed; ++in, ++out) {
        if (passes(*in) < passes(*out) || (passes(*in) - passes(*out)) * kPaysWithin < layers_[i].passes) break;
        gains.push_back({{run(*in), run(*out)}, passes(*in) - passes(*out)});
      }
    }
  }
  std::stable_sort(gains.begin(), gains.end(), [](const Gain &a, const Gain &b) { return a.passes > b.passes; });
  std::vector<Exchange> chosen;
  std::uint64_t bytes = 0;
  for (const Gain &gain : gains) {
    bytes += gain.exchange.in->length;
    if (bytes > most_exchanged_ && !chosen.empty()) break;
    chosen.push_back(gain.exchange);
  }
  return chosen;
}

}  // namespace edgekit
