#include "session/pass.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "error.h"

namespace edgekit {
namespace {

using Clock = std::chrono::steady_clock;

// Scores are divided by temperatures as float32: what is nearer to 0 or larger makes infinities of them.
constexpr float kLeastTemperature = 1e-20f, kMostTemperature = 1e20f;

[[noreturn]] void no_prefix(const Bundle &bundle) {
  fail(EK_INVALID_STATE, bundle.path(), ": this model encodes no prefix; put the prompt on the canvas");
}

// Beyond these a model was never trained; the second bound keeps products of sizes within 64 bits.
void check_position(const Model &model, std::int64_t position) {
  if (model.max_positions != 0 && position >= model.max_positions) {
    fail(EK_INVALID_ARGUMENT, "position ", position, " is beyond those that the model was made for, 0..",
         model.max_positions - 1);
  }
  if (position >= 2 * kMaxPositions) {
    fail(EK_INVALID_ARGUMENT, "position ", position, " of a row; it must be 0..", 2 * kMaxPositions - 1);
  }
}

// Of no other pass of this process.
std::uint64_t pass_number() {
  static std::atomic<std::uint64_t> passes{0};
  return ++passes;
}

// Throws Error (EK_INVALID_ARGUMENT) for soft embeddings that no pass gives; null: none. A difference is 0 for finite numbers
// alone, and or-ing them keeps the loop without branches.
void check_soft(const float *soft, std::int64_t size) {
  bool wrong = false;
  for (std::int64_t i = 0; soft != nullptr && i < size; ++i) wrong |= !(soft[i] - soft[i] == 0.0f);
  if (wrong) fail(EK_INVALID_ARGUMENT, "soft embeddings hold what is not finite; give those of an earlier answer");
}

std::int64_t kept_count(const PassSegment &given) { return given.keep_count == 0 ? given.count : given.keep_count; }

// Throws Error (EK_INVALID_ARGUMENT) where a row is named twice: attention would weigh it twice.
void check_once(std::vector<SeenRows> seen, std::size_t index) {
  std::sort(seen.begin(), seen.end(), [](const SeenRows &a, const SeenRows &b) {
    return std::tie(a.segment, a.first) < std::tie(b.segment, b.first);
  });
  for (std::size_t i = 1; i < seen.size(); ++i) {
    const SeenRows &before = seen[i - 1];
    if (before.segment != seen[i].segment || before.first + before.count <= seen[i].first) continue;
    fail(EK_INVALID_ARGUMENT, "segment ", index, " sees row ", seen[i].first,
         before.segment < 0 ? " of what is kept" : " of an earlier segment", " twice");
  }
}

}  // namespace

void check_ids(const Model &model, const std::int64_t *ids, std::int64_t count) {
  if (count < 0 || count > kMaxPositions) {
    fail(EK_INVALID_ARGUMENT, count, " token ids; give 0..", kMaxPositions);
  }
  if (count > 0 && ids == nullptr) fail(EK_INVALID_ARGUMENT, "no token ids are given");
  for (std::int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= model.vocabulary) {
      fail(EK_INVALID_ARGUMENT, "token ", ids[i], " at position ", i, " is outside the model's vocabulary of ",
           model.vocabulary, " tokens");
    }
  }
}

void check_text(const Session::Implementation &session, const Sequence &sequence, const std::int64_t *ids,
                std::int64_t count) {
  const Model &model = session.model();
  if (!model.causal_prefix) no_prefix(session.bundle);
  check_ids(model, ids, count);
  check_position(model, sequence.prefix_length() + count - 1);
}

void check_prefill(const Session::Implementation &session, const Sequence &sequence, const std::int64_t *ids,
                   std::int64_t count) {
  check_text(session, sequence, ids, count);
  const std::int64_t chunk = prefill_chunk(session.model()), before = sequence.prefix_length();
  session.check_lengths(true, std::min(chunk, count), before + count, 1);
  for (std::int64_t done = 0; done < count; done += chunk) {
    session.engine->check_rows(std::min(chunk, count - done), before + done);
  }
}

PassRun::PassRun(Session::Implementation &session, const std::vector<PassSegment> &segments)
    : session_(session),
      model_(session.model()),
      memory_(session.engine->memory()),
      segments_(segments.size()),
      results_(segments.size()) {
  if (segments.empty()) fail(EK_INVALID_ARGUMENT, "a pass without segments");
  for (std::size_t i = 0; i < segments.size(); ++i) {
    segments_[i].given = &segments[i];
    about_segment(i, [&] { settle(i); });
  }
  session.with_kv_room(added_bytes(), [&] { unkept_ = KvCharge(*session.kept_memory, unkept_bytes()); });
}

void PassRun::settle(std::size_t index) {
  Rows &own = segments_[index];
  const PassSegment &given = *own.given;
  own.sequence = given.sequence;
  own.first = rows_;
  if (given.count < 0 || given.count > kMaxPositions) {
    fail(EK_INVALID_ARGUMENT, "a canvas of ", given.count, " positions; it needs at least one and at most ", kMaxPositions);
  }
  check_adapter(model_, given.adapter);
  const std::int64_t length = own.length = own.sequence->kept_.length();
  if (given.count == 0) {
    if (given.keep_at || given.seen || given.request == nullptr) {
      fail(EK_INVALID_ARGUMENT, "a segment without token ids is a request to the vocabulary head and nothing else");
    }
    own.asked = own.sequence->last_rows_;
    if (own.asked == 0) fail(EK_INVALID_STATE, "project needs a denoise before it that did not fail");
    return check_request(*given.request, own.asked);
  }
  check_ids(model_, given.ids, given.count);
  if (model_.self_conditioning && !given.causal) check_soft(given.soft, given.count * model_.hidden);
  own.asked = given.count;
  if (given.request != nullptr) {
    check_request(*given.request, own.asked);
    for (std::size_t i = 0; i < index; ++i) {
      if (segments_[i].sequence == own.sequence) segments_[i].last = false;
    }
    own.last = true;
  }
  if (!model_.causal_prefix && given.causal) no_prefix(session_.bundle);
  if (given.block < 1) fail(EK_INVALID_ARGUMENT, "blocks of ", given.block, " rows; they need at least one");
  const std::int64_t from = given.keep_at.value_or(length);
  // Rows that a segment names itself are looked at where they are taken.
  const bool behind = given.positions == nullptr || given.seen;
  if (given.keep_at || !given.seen) {
    own.sequence->kept_.check(behind ? from : std::min(from, std::max<std::int64_t>(given.positions[0], 0)));
  }
  settle_positions(own, from);
  settle_seen(index);
  if (given.keep_count < 0 || given.keep_count > given.count || (given.keep_count > 0 && !given.keep_at)) {
    fail(EK_INVALID_ARGUMENT, "keep_count is ", given.keep_count, " of a segment of ", given.count, " rows",
         given.keep_at ? "" : " without keep_at", "; use 0 for all of those that are kept");
  }
  std::int64_t before = 0;
  for (const SeenRows &seen : own.seen) before += seen.count;
  const std::int64_t stop = given.keep_at ? from + given.count : length;
  session_.check_lengths(given.causal, given.count, std::max(stop, before), static_cast<std::int64_t>(index) + 1);
  for (std::size_t i = 0; given.keep_at && i < index; ++i) {
    if (segments_[i].sequence == own.sequence && segments_[i].given->keep_at) {
      fail(EK_INVALID_ARGUMENT, "two segments of a pass keep rows of the same sequence");
    }
  }
  rows_ += given.count;
}

void PassRun::settle_positions(Rows &own, std::int64_t from) const {
  const PassSegment &given = *own.given;
  // Where what is kept counts as that of its own place: for a mask of text, and for windows.
  const bool in_place = model_.causal_prefix || std::any_of(model_.layers.begin(), model_.layers.end(),
                                                            [](const LayerInfo &layer) { return layer.window != 0; });
  for (std::int64_t i = 0; i < given.count; ++i) {
    const std::int64_t position = given.positions == nullptr ? from + i : given.positions[i];
    if (position < 0) fail(EK_INVALID_ARGUMENT, "position ", position, " of a row is negative");
    check_position(model_, position);
    if (given.keep_at && in_place && position != from + i) {
      fail(EK_INVALID_ARGUMENT, "rows that are kept from position ", from, " on must have positions that follow it: row ", i,
           " has ", position);
    }
    own.positions.push_back(position);
  }
}

void PassRun::settle_seen(std::size_t index) {
  Rows &own = segments_[index];
  const std::int64_t length = own.sequence->kept_.length();
  if (!own.given->seen) {
    own.seen.push_back({-1, 0, own.given->keep_at.value_or(length)});
    return;
  }
  for (const SeenRows &rows : *own.given->seen) {
    if (rows.segment < -1 || rows.segment >= static_cast<std::int64_t>(index)) {
      fail(EK_INVALID_ARGUMENT, "segment ", index, " sees segment ", rows.segment, "; only earlier ones can be seen");
    }
    const bool kept = rows.segment == -1;
    const std::int64_t count = kept ? length : segments_[static_cast<std::size_t>(rows.segment)].given->count;
    if (rows.first < 0 || rows.count < 0 || rows.first > count || rows.count > count - rows.first) {
      fail(EK_INVALID_ARGUMENT, "segment ", index, " sees ", rows.count, " rows from ", rows.first, " of ", count);
    }
    if (rows.count == 0) continue;
    own.seen.push_back(rows);
    if (!kept) segments_[static_cast<std::size_t>(rows.segment)].looked_at = true;
  }
  check_once(own.seen, index);
}

// At most: buffers of one call of the engine serve the next.
std::uint64_t PassRun::unkept_bytes() const {
  std::int64_t rows = 0;
  for (const Rows &each : segments_) {
    if (each.looked_at && !each.given->keep_at) rows += each.given->count;
  }
  std::vector<std::int64_t> widths;  // by layer of a call
  for (const BundleChunk &chunk : session_.bundle.chunks()) {
    widths.resize(std::max(widths.size(), chunk.count));
    for (std::size_t k = 0; k < chunk.count; ++k) {
      const LayerInfo &info = model_.layers[chunk.first + k];
      widths[k] = std::max(widths[k], 2 * info.kv_heads * info.head_dim);
    }
  }
  const std::int64_t width = std::accumulate(widths.begin(), widths.end(), std::int64_t{0});
  return sizeof(float) * static_cast<std::uint64_t>(rows * width);
}

// For keys and values, besides what sequences hold already.
std::uint64_t PassRun::added_bytes() const {
  std::int64_t rows = 0;
  for (const Rows &each : segments_) {
    if (each.given->keep_at) rows += each.given->count;
  }
  std::uint64_t bytes = unkept_bytes();
  for (const KvGeometry &layer : session_.kept_memory->layers) bytes += KvChunk::bytes(layer, rows);
  return bytes;
}

void PassRun::check_request(const HeadRequest &request, std::int64_t positions) const {
  if (!(request.temperature >= kLeastTemperature && request.temperature <= kMostTemperature)) {
    fail(EK_INVALID_ARGUMENT, "temperature ", request.temperature, "; it must be ", kLeastTemperature, "..",
         kMostTemperature);
  }
  if (request.gumbel && !(request.gumbel->scale >= 0 && std::isfinite(request.gumbel->scale))) {
    fail(EK_INVALID_ARGUMENT, "gumbel_scale ", request.gumbel->scale, " is not a number at least 0");
  }
  if (request.top_k < 0) fail(EK_INVALID_ARGUMENT, "top_k ", request.top_k, " is negative");
  if (request.roles && !session_.role_head) {
    fail(EK_INVALID_ARGUMENT, session_.bundle.path(), ": has no role head to ask for roles; train one for the checkpoint "
         "(edgekit.tools.train_roles) and export it again");
  }
  if (request.all_rows) {
    if (request.expected_rows == 0 || request.expected_rows == positions) return;
    fail(EK_INVALID_ARGUMENT, "a request for all ", request.expected_rows, " rows of a pass that has ", positions);
  }
  for (const std::int64_t row : request.rows) {
    if (row < 0 || row >= positions) {
      fail(EK_INVALID_ARGUMENT, "row ", row, " is outside the ", positions, " positions of the pass");
    }
  }
}

// Whether the rows that are kept of a segment are what encoding their ids behind what precedes them gives.
bool PassRun::is_text(const PassSegment &given) const {
  if (given.seen || given.adapter != session_.options.adapter) return false;
  if (model_.prefix_block == 1) return given.causal && given.block == 1;
  if (kept_count(given) != given.count) return false;
  return given.causal ? given.block == model_.prefix_block : given.soft == nullptr && given.count <= model_.prefix_block;
}

Pass PassRun::kind() const {
  if (rows_ == 0) return Pass::head;
  const bool text = std::all_of(segments_.begin(), segments_.end(),
                                [](const Rows &each) { return each.given->causal && each.given->request == nullptr; });
  return text ? Pass::prefill : Pass::denoise;
}

// Times the pass and has its weights read ahead. One that fails leaves no half-read schedule, and nothing under way.
std::vector<HeadResult> PassRun::run(Pass then) {
  const Clock::time_point started = Clock::now();
  const auto timed = [&] { session_.pass_seconds += std::chrono::duration<double>(Clock::now() - started).count(); };
  // Callers size their arrays by the last pass that they have a result of.
  for (const Rows &each : segments_) {
    if (each.last) each.sequence->last_rows_ = 0;
  }
  try {
    session_.with_kv_room(added_bytes(), [&] { attempt(then); });
  } catch (...) {
    for (const Rows &each : segments_) {
      if (each.sequence->kept_.length() != each.length) each.sequence->keep({});
    }
    timed();
    throw;
  }
  timed();
  count(started, Clock::now());
  return std::move(results_);
}

void PassRun::count(Moment begun, Moment ended) {
  PassTotals &totals = session_.passes;
  const Pass own = kind();
  const Moment headed = own == Pass::prefill ? ended : headed_;
  (own == Pass::prefill ? totals.prefill_seconds : totals.denoise_seconds) += seconds_between(begun, headed);
  totals.head_seconds += seconds_between(headed, ended);
  ++(own == Pass::prefill ? totals.prefills : own == Pass::denoise ? totals.denoises : totals.heads);
  totals.rows += rows_;
  if (session_.observer == nullptr) return;
  PassTimes times{own, begun, headed, ended, rows_, static_cast<std::int64_t>(segments_.size()), 0, 0, expert_rows_};
  for (const Rows &each : segments_) {
    const std::int64_t count = each.given->count, block = each.given->causal ? each.given->block : count;
    std::int64_t before = 0;
    for (const SeenRows &rows : each.seen) before += rows.count;
    for (std::int64_t i = 0; i < count; ++i) times.attended += before + std::min(count, (i / block + 1) * block);
    if (each.given->request != nullptr) times.head_rows += each.given->request->row_count(each.asked);
  }
  session_.observer->passed(times);
}

void PassRun::attempt(Pass then) {
  try {
    expert_rows_ = 0;
    session_.begin(kind(), then);
    compute();
  } catch (...) {
    try {
      session_.in_use.finish();
    } catch (...) {
      // What failed first is what matters.
    }
    session_.weights.idle();
    if (session_.packages) session_.packages->idle();
    for (const Rows &each : segments_) each.sequence->kept_.abandon();
    throw;
  }
}

void PassRun::compute() {
  if (rows_ > 0) {
    embed();
    if (kind() == Pass::denoise && model_.self_conditioning) self_condition();
    run_layers();
  }
  headed_ = Clock::now();
  if (kind() != Pass::prefill) {
    finish();
    heads();
  }
  keep();
}

// Nothing is kept before all of it has been computed.
void PassRun::keep() {
  std::vector<FloatCopy> copies;
  for (const Rows &each : segments_) {
    if (!each.last) continue;
    FloatCopy copy;
    copy.count = each.given->count * model_.hidden;
    copy.to = each.sequence->last_.floats(copy.count, memory_);
    copy.from = x_ + each.first * model_.hidden;
    copies.push_back(copy);
  }
  if (!copies.empty()) memory_.copy(copies);
  session_.in_use.finish();
  for (const Rows &each : segments_) {
    if (each.given->keep_at) each.sequence->text_.reserve(*each.given->keep_at + each.given->count);
  }
  try {
    for (const Rows &each : segments_) {
      if (each.given->keep_at) each.sequence->kept_.commit(kept_count(*each.given));
    }
  } catch (...) {
    // Not the new text of some and the old one of others.
    for (const Rows &each : segments_) {
      if (each.given->keep_at) each.sequence->kept_.clear();
    }
    throw;
  }
  const std::uint64_t number = pass_number();
  for (const Rows &each : segments_) {
    const PassSegment &given = *each.given;
    if (given.keep_at) each.sequence->text_.kept(*given.keep_at, given.ids, kept_count(given), is_text(given));
    if (!each.last) continue;
    each.sequence->last_rows_ = each.given->count;
    each.sequence->last_pass_ = number;
  }
}

void PassRun::embed() {
  x_ = session_.hidden_states.floats(rows_ * model_.hidden, memory_);
  std::vector<std::int64_t> positions;
  std::vector<float> adapter;
  for (const Rows &each : segments_) {
    if (each.given->count == 0) continue;
    if (model_.adapters > 0) adapter.resize(adapter.size() + each.positions.size(), each.given->adapter == 0 ? 0.0f : 1.0f);
    write_floats(memory_, x_ + each.first * model_.hidden, each.given->count * model_.hidden, session_.staged,
                 [&](float *out) { session_.embedding.gather(each.given->ids, each.given->count, out); });
    positions.insert(positions.end(), each.positions.begin(), each.positions.end());
  }
  session_.inputs.set_positions(positions);
  session_.inputs.set_adapter(adapter);
}

// Canvases take what the last step expected of them; text takes nothing.
void PassRun::self_condition() {
  session_.in_use.with(*session_.bundle.self_conditioning(), [&](const LoadedUnit &loaded) {
    for (const Rows &each : segments_) {
      if (each.given->causal || each.given->count == 0) continue;
      const std::int64_t size = each.given->count * model_.hidden;
      float *earlier = session_.soft_input.floats(size, memory_);
      const float *soft = each.given->soft;
      write_floats(memory_, earlier, size, session_.staged, [&](float *out) {
        for (std::int64_t i = 0; i < size; ++i) out[i] = soft == nullptr ? 0.0f : soft[i] * model_.embedding_scale;
      });
      session_.engine->self_condition(loaded, each.given->count, x_ + each.first * model_.hidden, earlier);
    }
  });
}

void PassRun::run_layers() {
  own_.resize(segments_.size());
  for (std::size_t i = 0; i < session_.bundle.chunks().size(); ++i) {
    const BundleChunk &chunk = session_.bundle.chunks()[i];
    LayersCall call;
    call.chunk = &chunk;
    call.rows = rows_;
    call.x = x_;
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      // Of all segments before any view: room for more may move what a sequence keeps.
      own_[s].resize(std::max(own_[s].size(), chunk.count));
      for (std::size_t k = 0; k < chunk.count; ++k) place_own(s, chunk.first + k, k);
    }
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      if (segments_[s].given->count == 0) continue;
      LayerSegment segment{segments_[s].first, segments_[s].given->count, segments_[s].given->causal, {}};
      for (std::size_t k = 0; k < chunk.count; ++k) segment.layers.push_back(layer_inputs(s, chunk.first + k, k));
      call.segments.push_back(std::move(segment));
    }
    call.inputs = session_.inputs.version();
    call.experts = [&](const auto &rows, const auto &use) { experts(i, rows, use); };
    session_.in_use.with(*chunk.unit, [&](const LoadedUnit &loaded) {
      call.weights = loaded;
      std::optional<WeightStore::Use> mixture;
      if (chunk.mixture != nullptr) {
        mixture.emplace(session_.weights, *chunk.mixture->run);
        call.mixture = {chunk.mixture, mixture->data()};
      }
      session_.engine->layers(call);
    });
  }
}

// Streamed experts of a batch are waited for before they are given back: routing, which needs its counts at once, stands
// between two layers anyway.
void PassRun::experts(std::size_t chunk, const std::vector<std::int64_t> &rows,
                      const std::function<void(const std::vector<LoadedExpertUnit> &)> &use) {
  expert_rows_ += std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  // The counts are known, so what came before has been done. The memory is planned for this layer's units alone.
  session_.in_use.settle();
  session_.experts.each(chunk, rows, [&](const std::vector<LoadedExpertUnit> &batch, bool passing) {
    if (!passing) return use(batch);
    WorkEnds ends(*session_.engine);
    use(batch);
    ends.wait();
  });
}

void PassRun::place_own(std::size_t segment, std::size_t layer, std::size_t place) {
  const Rows &rows = segments_[segment];
  Own &mine = own_[segment][place];
  if (rows.given->keep_at) {
    mine.rows = rows.sequence->kept_.prepare(layer, *rows.given->keep_at, rows.given->count);
  } else if (rows.looked_at) {
    const LayerInfo &info = model_.layers[layer];
    const std::int64_t count = rows.given->count;
    float *data = mine.memory.floats(2 * info.kv_heads * count * info.head_dim, memory_);
    mine.rows = keys_at(data, info.kv_heads, info.head_dim, count, 0, count);
  }
}

LayerInputs PassRun::layer_inputs(std::size_t segment, std::size_t layer, std::size_t place) {
  const Rows &rows = segments_[segment];
  const LayerInfo &info = model_.layers[layer];
  const KeptRows &kept = rows.sequence->kept_;
  LayerInputs given;
  given.layer = layer;
  const Own &mine = own_[segment][place];
  if (rows.given->keep_at || rows.looked_at) {
    given.k = mine.rows.keys;
    given.v = mine.rows.values;
  }
  // A layer with a window shows what the segment's first row sees.
  const std::int64_t oldest = info.window == 0 ? 0 : rows.positions.front() - (info.window - 1);
  std::vector<std::int64_t> keys;
  for (const SeenRows &seen : rows.seen) {
    const std::int64_t stop = seen.first + seen.count;
    if (seen.segment >= 0) {
      const std::size_t other = static_cast<std::size_t>(seen.segment);
      const std::vector<std::int64_t> &positions = segments_[other].positions;
      const KeyPiece &all = own_[other][place].rows;
      const auto hidden = [&](std::int64_t row) { return positions[static_cast<std::size_t>(row)] < oldest; };
      // Positions need not ascend: runs of rows that are new enough.
      for (std::int64_t first = seen.first; first < stop;) {
        std::int64_t end = first;
        while (end < stop && !hidden(end)) ++end;
        if (end > first) {
          given.kept.push_back({rows_of(all.keys, first, end - first), rows_of(all.values, first, end - first)});
          given.kept_rows += end - first;
          keys.insert(keys.end(), positions.begin() + first, positions.begin() + end);
        }
        for (first = end; first < stop && hidden(first);) ++first;
      }
      continue;
    }
    const std::int64_t first = std::max(seen.first, oldest);
    if (first >= stop) continue;
    if (first < kept.first(layer)) {
      // They were there before another segment of the pass made room for its own.
      fail(EK_INVALID_STATE, "position ", rows.positions.front(), " of ", kept.length(), " is too far back in a pass that keeps more: layers ",
           "with a window of ", info.window, " let go of what precedes it; encode the text again");
    }
    kept.append_pieces(layer, first, stop, given.kept);
    given.kept_rows += stop - first;
    for (std::int64_t at = first; rows.given->causal && at < stop; ++at) keys.push_back(at);
  }
  const std::int64_t width = static_cast<std::int64_t>(model_.ropes[info.rope].inverse_frequency.size());
  given.cos = session_.inputs.cos(info.rope) + rows.first * width;
  given.sin = session_.inputs.sin(info.rope) + rows.first * width;
  const float *scale = session_.inputs.query_scale(info.rope);
  given.query_scale = scale == nullptr ? nullptr : scale + rows.first;
  const float *adapter = session_.inputs.adapter();
  given.adapter = adapter == nullptr ? nullptr : adapter + rows.first;
  if (rows.given->causal) {
    keys.insert(keys.end(), rows.positions.begin(), rows.positions.end());
    given.mask = session_.inputs.text_mask(segment, info.window, rows.given->block, rows.positions, keys);
  }
  return given;
}

// The last norm of the rows that the head looks at.
void PassRun::finish() {
  if (rows_ == 0) return;
  session_.in_use.with(session_.bundle.final(), [&](const LoadedUnit &loaded) {
    for (const Rows &each : segments_) {
      if (each.given->count == 0 || each.given->request == nullptr) continue;
      session_.engine->final(loaded, each.given->count, x_ + each.first * model_.hidden);
    }
  });
}

// The request of a segment at work; null: none of its rows is asked for.
std::unique_ptr<HeadScores> PassRun::head(std::size_t segment) {
  const Rows &own = segments_[segment];
  if (own.given->request == nullptr) return nullptr;
  const HeadRequest &request = *own.given->request;
  const std::int64_t hidden = model_.hidden;
  const bool again = own.given->count == 0;
  const float *x = again ? own.sequence->last_.data() : x_ + own.first * hidden;
  const std::int64_t rows = request.row_count(own.asked);
  if (rows == 0) return nullptr;
  if (!request.all_rows) {
    if (session_.picked.size() <= segment) session_.picked.resize(segment + 1);
    float *chosen = session_.picked[segment].floats(rows * hidden, memory_);
    std::vector<FloatCopy> copies;
    for (std::int64_t i = 0; i < rows; ++i) {
      FloatCopy copy;
      copy.to = chosen + i * hidden;
      copy.from = x + request.rows[static_cast<std::size_t>(i)] * hidden;
      copy.count = hidden;
      copies.push_back(copy);
    }
    memory_.copy(copies);
    x = chosen;
  }
  if (request.roles) results_[segment].roles = roles(x, rows);
  std::vector<float> &logits = results_[segment].logits;
  if (request.logits && request.logits_to == nullptr) logits.resize(static_cast<std::size_t>(rows * model_.vocabulary));
  float *to = !request.logits ? nullptr : request.logits_to != nullptr ? request.logits_to : logits.data();
  return session_.engine->head(x, rows, request, to);
}

// Scores of x [rows, hidden], in the engine's memory.
std::vector<float> PassRun::roles(const float *x, std::int64_t rows) {
  if (!memory_.session()) {
    FloatCopy copy;
    copy.to = session_.role_rows.floats(rows * model_.hidden);
    copy.from = x;
    copy.count = rows * model_.hidden;
    copy.to_session = true;
    memory_.copy({copy});
    memory_.finish();
    x = copy.to;
  }
  return session_.role_head->scores(x, rows);
}

void PassRun::heads() {
  std::vector<std::unique_ptr<HeadScores>> scores;
  for (std::size_t i = 0; i < segments_.size(); ++i) scores.push_back(head(i));
  const bool wanted = std::any_of(scores.begin(), scores.end(), [](const auto &each) { return each != nullptr; });
  if (!wanted) return session_.idle();  // the table that was read ahead is not taken
  for (const BundleTile &tile : session_.bundle.scores()) {
    session_.in_use.with(*tile.unit, [&](const LoadedUnit &loaded) {
      for (const auto &each : scores) {
        if (each) each->add(tile, loaded);
      }
    });
  }
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (!scores[i]) continue;
    HeadResult own = std::move(results_[i]);
    results_[i] = scores[i]->result();
    results_[i].logits = std::move(own.logits);
    results_[i].roles = std::move(own.roles);
  }
}

}  // namespace edgekit
