#include "session/session.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <sstream>
#include <utility>

#include "error.h"
#include "session/bundle.h"
#include "session/experts.h"
#include "session/inputs.h"
#include "session/memory.h"
#include "session/prefix.h"
#include "session/process.h"
#include "session/weight_store.h"
#include "thread_pool.h"

namespace edgekit {
namespace {

using Clock = std::chrono::steady_clock;

// Bounds that keep products of sizes within 64 bits; far beyond any model and machine.
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 22;
constexpr int kMaxThreads = 1024;

SessionOptions checked(const SessionOptions &options) {
  if (options.positions < 0 || options.positions > kMaxPositions || options.canvas < 1 ||
      options.canvas > kMaxPositions) {
    fail(EK_INVALID_ARGUMENT, "a session for ", options.positions, " positions and a canvas of ", options.canvas,
         "; they must be 0..", kMaxPositions, " and 1..", kMaxPositions);
  }
  if (options.threads < 0 || options.threads > kMaxThreads) {
    fail(EK_INVALID_ARGUMENT, "threads is ", options.threads, "; use an integer from 1 to ", kMaxThreads,
         ", or 0 for every core");
  }
  return options;
}

ResidencyPlan checked_plan(const Bundle &bundle, const MemoryNeeds &needs, const SessionOptions &options,
                           std::uint64_t machine) {
  ResidencyPlan plan = plan_weights(bundle, needs, options);
  check_machine(bundle, needs, plan, options, machine);
  return plan;
}

}  // namespace

struct Session::Implementation {
  Implementation(const std::string &folder, const SessionOptions &given, const FlashFile::Wrap &wrap)
      : options(checked(given)),
        bundle(folder, wrap),
        threads(options.threads != 0 ? options.threads : usable_cores()),
        needs(memory_needs(bundle, options, threads)),
        machine(machine_memory()),
        plan(checked_plan(bundle, needs, options, machine)),
        pool(threads),
        weights(bundle.file(), plan, [this](Pass pass) { return runs_of(pass); }),
        experts(bundle, weights, plan),
        prefix(kv_geometry(bundle.model()), bundle.model().causal_prefix ? options.positions : 0,
               prefill_chunk(bundle.model())),
        inputs(bundle.model()),
        embedding(bundle, weights) {
    scratch = AlignedMemory(static_cast<std::size_t>(needs.scratch));
  }

  const Model &model() const { return bundle.model(); }

  std::vector<const Run *> runs_of(Pass pass) const {
    std::vector<const Run *> out;
    if (pass == Pass::denoise && model().self_conditioning) out.push_back(bundle.self_conditioning().run);
    if (pass != Pass::head) {
      for (std::size_t i = 0; i < bundle.layers().size(); ++i) {
        out.push_back(bundle.layers()[i].dense.run);
        experts.append_runs(i, out);
      }
    }
    if (pass == Pass::denoise) out.push_back(bundle.final().run);
    if (pass != Pass::prefill) {
      for (const BundleTile &tile : bundle.scores()) out.push_back(tile.run);
    }
    return out;
  }

  // Times a pass and has its weights read ahead. One that fails leaves no half-read schedule, and a prefill no
  // half-filled prefix: the prefix is forgotten then.
  template <typename Body>
  void pass(Pass kind, Pass then, Body &&body) {
    const Clock::time_point started = Clock::now();
    const auto timed = [&] { pass_seconds += std::chrono::duration<double>(Clock::now() - started).count(); };
    try {
      weights.begin(kind, then);
      body();
    } catch (...) {
      weights.idle();
      if (kind == Pass::prefill) prefix.clear();
      timed();
      throw;
    }
    timed();
  }

  // A budget holds for the lengths that the session was opened for; without one, buffers grow up to what the machine has.
  void check_lengths(Pass kind, std::int64_t count, std::int64_t committed) const {
    if (count > kMaxPositions || committed > kMaxPositions) {
      fail(EK_INVALID_ARGUMENT, "a pass over ", count, " positions after ", committed, "; the limit is ",
           kMaxPositions);
    }
    const std::int64_t longest = kind == Pass::prefill ? longest_pass(model(), options) : options.canvas;
    const bool fits = count <= longest && (!model().causal_prefix || committed <= options.positions);
    if (fits) return;
    SessionOptions longer = options;
    longer.canvas = std::max(options.canvas, count);
    longer.positions = std::max(options.positions, committed);
    MemoryNeeds more = memory_needs(bundle, longer, threads);
    more.process = needs.process;
    if (options.memory_bytes == 0) return check_machine(bundle, more, plan, longer, machine);
    std::ostringstream message;
    message << bundle.path() << ": the memory budget was planned for passes of up to " << options.canvas
            << " positions after " << options.positions << ", not for " << count << " after " << committed
            << "; open the session for these";
    throw BudgetError(message.str(), least_budget(bundle, more, longer));
  }

  void check_ids(const std::int64_t *ids, std::int64_t count) const {
    if (count > 0 && ids == nullptr) fail(EK_INVALID_ARGUMENT, "no token ids are given");
    for (std::int64_t i = 0; i < count; ++i) {
      if (ids[i] < 0 || ids[i] >= model().vocabulary) {
        fail(EK_INVALID_ARGUMENT, "token ", ids[i], " at position ", i, " is outside the model's vocabulary of ",
             model().vocabulary, " tokens");
      }
    }
  }

  void run_program(const Program &program, const ProgramInputs &given, const BoundWeights &bound,
                   const ForEachExpert &experts, const ProgramOutputs &outputs) {
    const std::size_t wanted = program.scratch_bytes(given.positions, given.prefix, pool.size());
    if (wanted > scratch.size()) {
      scratch = AlignedMemory();  // not both at a time
      scratch = AlignedMemory(wanted);
    }
    program.run(pool, given, bound, experts, outputs, scratch.data());
  }

  void run_layers(float *x, std::int64_t count, bool encode) {
    inputs.set_positions(prefix.length(), count);
    for (std::size_t i = 0; i < bundle.layers().size(); ++i) {
      const BundleLayer &layer = bundle.layers()[i];
      ProgramInputs given;
      ProgramOutputs outputs;
      outputs.y = x;
      if (encode) {
        // Before the view: room for more may move what is kept.
        const PrefixView next = prefix.next(i, count);
        outputs.k = next.keys;
        outputs.v = next.values;
      }
      const PrefixView kept = prefix.view(i);
      given.positions = count;
      given.prefix = kept.length;
      given.x = x;
      given.prefix_k = kept.keys;
      given.prefix_v = kept.values;
      given.cos = inputs.cos(layer.info->rope);
      given.sin = inputs.sin(layer.info->rope);
      given.mask = encode ? inputs.causal_mask(kept.first, layer.info->window) : nullptr;
      given.phase = encode ? 1 : 0;
      const WeightStore::Use loaded(weights, *layer.dense.run);
      const ForEachExpert each = [&](const auto &rows, const auto &use) { experts.each(i, rows, use); };
      run_program(*layer.program, given, BoundWeights(layer.dense.layout, loaded.data()), each, outputs);
      if (encode) prefix.append(i, count);
    }
  }

  void self_condition(float *x, std::int64_t count, const float *soft) {
    const std::int64_t size = count * model().hidden;
    float *earlier = soft_input.floats(size);
    if (soft == nullptr) {
      std::fill_n(earlier, size, 0.0f);
    } else {
      scale(pool, soft, model().embedding_scale, size, earlier);
    }
    ProgramInputs given;
    given.positions = count;
    given.x = x;
    given.soft = earlier;
    ProgramOutputs outputs;
    outputs.y = x;
    const WeightStore::Use loaded(weights, *bundle.self_conditioning().run);
    run_program(bundle.program("self_conditioning"), given,
                BoundWeights(bundle.self_conditioning().layout, loaded.data()), {}, outputs);
  }

  void finish(const float *x, std::int64_t count) {
    ProgramInputs given;
    given.positions = count;
    given.x = x;
    ProgramOutputs outputs;
    outputs.y = last.floats(count * model().hidden);
    const WeightStore::Use loaded(weights, *bundle.final().run);
    run_program(bundle.program("final"), given, BoundWeights(bundle.final().layout, loaded.data()), {}, outputs);
    last_rows = count;
  }

  void check_request(const HeadRequest &request, std::int64_t positions) const {
    if (!(request.temperature > 0) || !std::isfinite(request.temperature)) {
      fail(EK_INVALID_ARGUMENT, "temperature ", request.temperature, " is not a positive number");
    }
    if (request.gumbel && !(request.gumbel->scale >= 0 && std::isfinite(request.gumbel->scale))) {
      fail(EK_INVALID_ARGUMENT, "gumbel_scale ", request.gumbel->scale, " is not a number at least 0");
    }
    if (request.top_k < 0) fail(EK_INVALID_ARGUMENT, "top_k ", request.top_k, " is negative");
    if (request.all_rows) return;
    for (const std::int64_t row : request.rows) {
      if (row < 0 || row >= positions) {
        fail(EK_INVALID_ARGUMENT, "row ", row, " is outside the ", positions, " positions of the pass");
      }
    }
  }

  HeadResult head(const HeadRequest &request) {
    const std::int64_t hidden = model().hidden;
    const float *x = last.data();
    std::int64_t rows = last_rows;
    if (!request.all_rows) {
      rows = static_cast<std::int64_t>(request.rows.size());
      float *chosen = picked.floats(rows * hidden);
      for (std::int64_t i = 0; i < rows; ++i) {
        std::memcpy(chosen + i * hidden, x + request.rows[static_cast<std::size_t>(i)] * hidden,
                    sizeof(float) * static_cast<std::size_t>(hidden));
      }
      x = chosen;
    }
    if (rows == 0) {
      weights.idle();  // the table that was read ahead is not taken
      return {};
    }
    HeadOptions wanted;
    wanted.temperature = request.temperature;
    wanted.softcap = bundle.softcap();
    wanted.gumbel = request.gumbel ? &*request.gumbel : nullptr;
    wanted.soft = request.soft;
    wanted.top_k = std::min(request.top_k, model().vocabulary);
    std::vector<float> logits;
    if (request.logits) {
      if (request.logits_to == nullptr) logits.resize(static_cast<std::size_t>(rows * model().vocabulary));
      wanted.logits = request.logits_to != nullptr ? request.logits_to : logits.data();
    }
    const int bits = (model().tied ? model().embedding : model().head).bits;
    HeadPass scores(pool, x, rows, hidden, model().vocabulary, bits, wanted);
    for (const BundleTile &tile : bundle.scores()) {
      const WeightStore::Use loaded(weights, *tile.run);
      scores.add(tile.first, tile.table.bind(loaded.data()));
    }
    HeadResult result = scores.result();
    result.logits = std::move(logits);
    return result;
  }

  const SessionOptions options;
  const Bundle bundle;
  const int threads;
  const MemoryNeeds needs;
  const std::uint64_t machine;  // bytes of memory; 0: nobody knows
  const ResidencyPlan plan;
  ThreadPool pool;
  WeightStore weights;
  Experts experts;
  PrefixCache prefix;
  PassInputs inputs;
  EmbeddingRows embedding;
  AlignedMemory scratch;
  FloatBuffer hidden_states, soft_input, last, picked;
  std::int64_t last_rows = 0;  // of the last denoise; 0: none, or it failed
  double pass_seconds = 0;
};

Session::Session(const std::string &bundle, const SessionOptions &options, const FlashFile::Wrap &wrap)
    : implementation_(std::make_unique<Implementation>(bundle, options, wrap)) {}

Session::~Session() = default;

std::int64_t Session::vocabulary() const { return implementation_->model().vocabulary; }
std::int64_t Session::prefix_length() const { return implementation_->prefix.length(); }
std::int64_t Session::hidden_size() const { return implementation_->model().hidden; }
void Session::reset() {
  implementation_->prefix.clear();
  implementation_->experts.exchange();
}
const Model &Session::model() const { return implementation_->model(); }
const Json &Session::sampler() const { return implementation_->bundle.sampler(); }
const MemoryNeeds &Session::needs() const { return implementation_->needs; }
int Session::threads() const { return implementation_->threads; }
void Session::idle() {
  implementation_->weights.idle();
  implementation_->experts.exchange();
}

void Session::check_lengths(std::int64_t count, std::int64_t committed) const {
  implementation_->check_lengths(Pass::denoise, count, committed);
}

void Session::prefill(const std::int64_t *ids, std::int64_t count) {
  Implementation &own = *implementation_;
  if (!own.model().causal_prefix) {
    fail(EK_INVALID_STATE, own.bundle.path(), ": this model encodes no prefix; put the prompt on the canvas");
  }
  if (count < 0 || count > kMaxPositions) {
    fail(EK_INVALID_ARGUMENT, count, " token ids to encode; give 0..", kMaxPositions);
  }
  own.check_ids(ids, count);
  const std::int64_t chunk = prefill_chunk(own.model());
  own.check_lengths(Pass::prefill, std::min(chunk, count), own.prefix.length() + count);
  for (std::int64_t start = 0; start < count; start += chunk) {
    const std::int64_t here = std::min(chunk, count - start);
    const bool more = start + chunk < count;
    own.pass(Pass::prefill, more ? Pass::prefill : Pass::denoise, [&] {
      float *x = own.hidden_states.floats(here * own.model().hidden);
      own.embedding.gather(ids + start, here, x);
      own.run_layers(x, here, true);
      own.prefix.advance(here);
    });
  }
}

HeadResult Session::denoise(const std::int64_t *ids, std::int64_t count, const HeadRequest &request,
                            const float *soft) {
  Implementation &own = *implementation_;
  if (count < 1 || count > kMaxPositions) {
    fail(EK_INVALID_ARGUMENT, "a canvas of ", count, " positions; it needs at least one and at most ", kMaxPositions);
  }
  own.check_ids(ids, count);
  own.check_request(request, count);
  own.check_lengths(Pass::denoise, count, own.prefix.length());
  HeadResult result;
  try {
    own.pass(Pass::denoise, Pass::denoise, [&] {
      float *x = own.hidden_states.floats(count * own.model().hidden);
      own.embedding.gather(ids, count, x);
      if (own.model().self_conditioning) own.self_condition(x, count, soft);
      own.run_layers(x, count, false);
      own.finish(x, count);
      result = own.head(request);
    });
  } catch (...) {
    own.last_rows = 0;  // callers size their arrays by the last pass that they have a result of
    throw;
  }
  return result;
}

HeadResult Session::project(const HeadRequest &request) {
  Implementation &own = *implementation_;
  if (own.last_rows == 0) fail(EK_INVALID_STATE, "project needs a denoise before it that did not fail");
  own.check_request(request, own.last_rows);
  HeadResult result;
  own.pass(Pass::head, Pass::denoise, [&] { result = own.head(request); });
  return result;
}

SessionStatistics Session::statistics() const {
  const Implementation &own = *implementation_;
  const RingStatistics ring = own.weights.ring_statistics();
  SessionStatistics out;
  out.io_mode = own.bundle.file().io_mode();
  out.pinned_bytes = own.plan.pinned_bytes;
  out.ring_bytes = own.plan.ring_bytes;
  out.streamed_bytes_per_step = own.plan.streamed_bytes;
  out.bytes_read = ring.bytes_read;
  out.bytes_skipped = ring.bytes_skipped;
  out.bytes_exchanged = own.weights.bytes_exchanged();
  out.scratch_bytes = own.scratch.size();
  out.io_seconds = ring.read_seconds;
  out.io_wait_seconds = ring.wait_seconds;
  out.pass_seconds = own.pass_seconds;
  return out;
}

ExpertUse Session::expert_use(std::size_t layer, std::size_t expert) const {
  return implementation_->experts.use(layer, expert);
}

}  // namespace edgekit
