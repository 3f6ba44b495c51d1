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
// Passes in which a layer may want more than has memory before its experts are streamed again.
constexpr int kMostOver = 2;
// Reads into places of others under way at a time.
constexpr std::size_t kBroughtAtOnce = 8;

}  // namespace

Experts::Experts(const Bundle &bundle, WeightStore &weights, const ResidencyPlan &plan)
    : bundle_(bundle), weights_(weights) {
  follow(plan);
  for (const BundleChunk &chunk : bundle.chunks()) {
    layers_.emplace_back();
    layers_.back().counts.resize(chunk.experts.size());
    for (std::size_t e = 0; e < chunk.experts.size(); ++e) {
      places_.emplace(chunk.experts[e]->run, e);
      layers_.back().alike = layers_.back().alike && chunk.experts[e]->run->length == chunk.experts[0]->run->length;
    }
  }
}

void Experts::follow(const ResidencyPlan &plan) {
  batch_bytes_ = plan.ring_bytes / kBatchShare;
  most_exchanged_ = plan.streamed_bytes / kExchangeShare;
}

bool Experts::begin(Pass pass) {
  pass_ = pass;
  bool changed = false;
  for (Layer &layer : layers_) {
    const bool brings = layer.alike && layer.fits > 0;
    changed = changed || brings != layer.brings;
    layer.brings = brings;
  }
  return changed;
}

void Experts::append_runs(std::size_t chunk, Pass pass, std::vector<const Run *> &out) const {
  if (pass == Pass::denoise && layers_[chunk].brings) return;
  const std::vector<Count> &counts = layers_[chunk].counts;
  std::vector<std::size_t> order(counts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return counts[a].passes > counts[b].passes; });
  for (const std::size_t e : order) out.push_back(bundle_.chunks()[chunk].experts[e]->run);
}

void Experts::count(Layer &own, const std::vector<const WeightUnit *> &experts, const std::vector<std::int64_t> &rows) {
  ++own.passes;
  std::size_t wanted = 0, places = 0, stay = 0;
  for (std::size_t e = 0; e < experts.size(); ++e) {
    Count &each = own.counts[e];
    each.rows += static_cast<std::uint64_t>(rows[e]);
    places += weights_.pinned(*experts[e]->run) != nullptr;
    stay += weights_.stays(*experts[e]->run);
    if (rows[e] == 0) continue;
    ++wanted;
    ++each.passes;
    totals_.again += pass_ == Pass::denoise && each.last != 0 && each.last + 1 == own.passes;
    each.last = own.passes;
  }
  if (pass_ != Pass::denoise) return;
  ++totals_.layers;
  totals_.wanted += wanted;
  // What streams nothing needs no places, and what the engine keeps itself gives none.
  const bool fits = stay < experts.size() && stay == places && wanted <= places;
  own.fits = fits ? kMostOver : std::max(0, own.fits - 1);
}

// Its places go round: first those of experts that the pass does not want, unused for longest, and where these are too
// few those of experts that have been computed.
void Experts::bring(Layer &own, const std::vector<const WeightUnit *> &experts, const std::vector<std::int64_t> &rows,
                    const Use &use) {
  std::vector<LoadedExpertUnit> batch;
  std::deque<const Run *> missing;
  std::vector<std::size_t> idle;
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const std::uint8_t *data = weights_.pinned(*experts[e]->run);
    if (rows[e] == 0) {
      if (data != nullptr) idle.push_back(e);
    } else if (data != nullptr) {
      batch.push_back({e, {experts[e], data}});
    } else {
      missing.push_back(experts[e]->run);
    }
  }
  std::stable_sort(idle.begin(), idle.end(),
                   [&](std::size_t a, std::size_t b) { return own.counts[a].last < own.counts[b].last; });
  std::deque<const Run *> places;
  for (const std::size_t e : idle) places.push_back(experts[e]->run);
  const bool passing = missing.size() > places.size();
  std::size_t under_way = 0;
  const auto read = [&] {
    for (; !missing.empty() && !places.empty() && under_way < kBroughtAtOnce; ++under_way) {
      weights_.bring({missing.front(), places.front()});
      missing.pop_front();
      places.pop_front();
    }
  };
  const auto compute = [&] {
    use(batch, passing);
    for (const LoadedExpertUnit &each : batch) places.push_back(each.weights.unit->run);
  };
  read();
  if (!batch.empty()) compute();
  for (read(); under_way > 0; read()) {
    batch.clear();
    for (const Run *run : weights_.brought()) {
      const std::size_t e = places_.at(run);
      batch.push_back({e, {experts[e], weights_.pinned(*run)}});
      --under_way;
    }
    compute();
  }
}

void Experts::each(std::size_t chunk, const std::vector<std::int64_t> &rows, const Use &use) {
  Layer &own = layers_[chunk];
  const std::vector<const WeightUnit *> &experts = bundle_.chunks()[chunk].experts;
  count(own, experts, rows);
  if (pass_ == Pass::denoise && own.brings) return bring(own, experts, rows, use);
  const auto loaded = [&](std::size_t e, const std::uint8_t *data) { return LoadedExpertUnit{e, {experts[e], data}}; };
  std::vector<LoadedExpertUnit> batch;
  std::size_t streamed = 0;
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const bool stays = weights_.stays(*experts[e]->run);
    if (!stays) ++streamed;
    if (stays && rows[e] != 0) batch.push_back(loaded(e, weights_.pinned(*experts[e]->run)));
  }

  std::vector<const Run *> wanted, unwanted;
  for (const Run *run : weights_.next(streamed)) (rows[places_.at(run)] != 0 ? wanted : unwanted).push_back(run);
  weights_.skip(unwanted);
  if (!batch.empty()) use(batch, false);
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
    use(batch, true);
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
    if (layers_[i].fits > 0 && layers_[i].alike) continue;  // each pass sees to it
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
