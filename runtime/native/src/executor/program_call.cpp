#include "executor/program_call.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "error.h"
#include "executor/elementwise.h"
#include "executor/mixture.h"
#include "kernels/attention.h"

namespace edgekit {

ProgramCall::ProgramCall(const ProgramPlan &plan, ThreadPool &pool, const ProgramInputs &inputs,
                         const BoundWeights &weights, const ForEachExpert &experts, float *y, void *scratch)
    : plan_(plan),
      graph_(plan.graph),
      pool_(pool),
      inputs_(inputs),
      weights_(weights),
      experts_(experts),
      y_(y),
      scratch_(static_cast<std::uint8_t *>(scratch)),
      data_(graph_.storage.size(), nullptr),
      rounded_(graph_.quantized.size()) {
  const std::size_t planned = plan.place(inputs.positions, pool.size(), offsets_);
  gemm_scratch_ = scratch_ + planned;
  for (std::size_t i = 0; i < data_.size(); ++i) {
    const Storage &storage = graph_.storage[i];
    if (storage.kind == Storage::Kind::scratch) data_[i] = scratch_ + offsets_[i];
    if (storage.kind == Storage::Kind::y) data_[i] = y;
    // No op writes to an input: storage is shared with results only where it is scratch or y.
    if (storage.kind == Storage::Kind::input) data_[i] = const_cast<void *>(input(storage.input));
  }
}

const void *ProgramCall::input(Input input) const {
  const auto dense = std::find(std::begin(kDenseInputs), std::end(kDenseInputs), input);
  if (dense != std::end(kDenseInputs)) return inputs_.dense.at(static_cast<std::size_t>(dense - std::begin(kDenseInputs)));
  switch (input) {
    case Input::soft:
      return inputs_.soft;
    case Input::cos:
      return inputs_.cos;
    case Input::sin:
      return inputs_.sin;
    case Input::query_scale:
      return inputs_.query_scale;
    case Input::adapter:
      return inputs_.adapter;
    case Input::phase:
      return inputs_.phase;
    default:
      return nullptr;  // x is in the array of y; prefix and mask go to attention as they are
  }
}

// Whether keys (output 1) or values (2) are computed where the caller wants them, which a single segment may ask for.
bool ProgramCall::in_place(int output) const {
  if (!graph_.direct[output] || inputs_.segments.size() != 1) return false;
  const ProgramSegment &only = inputs_.segments.front();
  return (output == 1 ? only.k : only.v).data != nullptr;
}

Strided ProgramCall::array(int id) const {
  if (in_place(1) && id == graph_.outputs[1]) return inputs_.segments.front().k;
  if (in_place(2) && id == graph_.outputs[2]) return inputs_.segments.front().v;
  return strided(value(id).array, floats(id), inputs_.positions);
}

void ProgramCall::run() {
  if (inputs_.x != y_) {
    const std::int64_t hidden = value(graph_.outputs[0]).array.shape.back().factor;
    std::memcpy(y_, inputs_.x, sizeof(float) * static_cast<std::size_t>(hidden * inputs_.positions));
  }
  for (std::size_t i = 0; i < graph_.ops.size(); ++i) step(i);
  deliver();
}

// The result, if it could not be computed in place.
void ProgramCall::deliver() {
  if (graph_.direct[0]) return;
  const Value &y = value(graph_.outputs[0]);
  copy(pool_, array(graph_.outputs[0]), strided(contiguous(y.array.shape, graph_.name), y_, inputs_.positions));
}

// Keys or values of the segments that want them and do not have them yet.
void ProgramCall::keep(int output, const Strided ProgramSegment::*to) {
  if (in_place(output)) return;
  const Strided all = array(graph_.outputs[static_cast<std::size_t>(output)]);
  for (const ProgramSegment &segment : inputs_.segments) {
    if ((segment.*to).data != nullptr) copy(pool_, rows_of(all, segment.first, segment.count), segment.*to);
  }
}

void ProgramCall::step(std::size_t place) {
  const Op &op = graph_.ops[place];
  switch (op.kind) {
    case OpKind::rms_norm:
      return rms_norm(pool_, array(op.in[0]), vector(op.weights[0]), op.number, array(op.out[0]));
    case OpKind::linear:
      return run_linear(op, place);
    case OpKind::linear_gated:
      return run_linear_gated(op, place);
    case OpKind::gated_act:
      return gated_act(pool_, floats(op.in[0]), columns(op.in[0]), floats(op.in[1]), columns(op.in[1]), rows(op.in[0]),
                       columns(op.in[0]), op.activation, floats(op.out[0]), columns(op.out[0]));
    case OpKind::rope:
      return rope(pool_, array(op.in[0]), floats(op.in[1]), floats(op.in[2]), columns(op.in[1]), array(op.out[0]));
    case OpKind::attention:
      return run_attention(op, place);
    case OpKind::experts:
      return run_experts(op, place);
    case OpKind::add:
    case OpKind::multiply:
      return run_binary(op);
    case OpKind::scale:
      return scale(pool_, floats(op.in[0]), op.number, count(op.in[0]), floats(op.out[0]));
    case OpKind::route:
      return run_route(op, place);
    case OpKind::select:
      return run_lookup(op);
    case OpKind::copy:
      return copy(pool_, array(op.in[0]), array(op.out[0]));
    case OpKind::view:
    case OpKind::transpose:
      return;  // the same memory, described in another way
  }
}

// in[0] rounded to int8, once for all products that read it.
const QuantizedRows &ProgramCall::rounded(const Op &op) {
  QuantizedRows &made = rounded_[static_cast<std::size_t>(op.quantized[0])];
  if (made.codes == nullptr) {
    const int id = op.in[0];
    void *memory = scratch_ + offsets_[plan_.rounded_buffer(op.quantized[0])];
    made = quantize_rows(pool_, floats(id), columns(id), rows(id), columns(id), memory);
  }
  return made;
}

void ProgramCall::product(const Op &op, const Matrix &matrix, const Addends &addends, float *y) {
  if (matrix.bits < 16 && op.act_bits == 8) {
    linear(pool_, matrix, rounded(op), y, matrix.rows, addends, gemm_scratch_);
  } else {
    const int id = op.in[0];
    linear_float(pool_, matrix, floats(id), columns(id), rows(id), y, matrix.rows, addends, gemm_scratch_);
  }
}

void ProgramCall::run_linear(const Op &op, std::size_t place) {
  Addends addends;
  addends.bias = vector(op.weights[1]);
  if (op.in[1] != kNone) {
    addends.residual = floats(op.in[1]);
    addends.residual_stride = columns(op.in[1]);
  }
  float *y = floats(op.out[0]);
  product(op, weights_.matrix(static_cast<std::size_t>(op.weights[0])), addends, y);
  if (op.rank == 0) return;
  const std::int64_t count = rows(op.in[0]);
  const float *factors = op.in[2] == kNone ? nullptr : floats(op.in[2]);
  if (factors == nullptr) return add_adapter(op, place, 0, count, 1);
  for (std::int64_t first = 0, stop = 0; first < count; first = stop) {
    for (stop = first + 1; stop < count && factors[stop] == factors[first]; ++stop) {}
    if (factors[first] != 0) add_adapter(op, place, first, stop - first, factors[first]);
  }
}

// Adds the low-rank product of `count` rows, times a factor, to the result of a linear.
void ProgramCall::add_adapter(const Op &op, std::size_t place, std::int64_t first, std::int64_t count, float factor) {
  const Matrix &down = weights_.matrix(static_cast<std::size_t>(op.weights[2]));
  const Matrix &up = weights_.matrix(static_cast<std::size_t>(op.weights[3]));
  const std::int64_t width = columns(op.in[0]);
  float *inner = reinterpret_cast<float *>(scratch_ + offsets_[plan_.op_buffer(place)]);
  linear_float(pool_, down, floats(op.in[0]) + first * width, width, count, inner, down.rows, {}, gemm_scratch_);
  if (factor != 1) scale(pool_, inner, factor, count * down.rows, inner);
  float *y = floats(op.out[0]) + first * up.rows;
  Addends product_so_far;
  product_so_far.residual = y;
  product_so_far.residual_stride = up.rows;
  linear_float(pool_, up, inner, down.rows, count, y, up.rows, product_so_far, gemm_scratch_);
}

void ProgramCall::run_linear_gated(const Op &op, std::size_t place) {
  const Matrix &gate = weights_.matrix(static_cast<std::size_t>(op.weights[0]));
  const Matrix &up = weights_.matrix(static_cast<std::size_t>(op.weights[1]));
  float *y = floats(op.out[0]);
  if (gate.bits < 16 && gate.bits == up.bits && gate.group == up.group) {
    linear_gated(pool_, gate, up, rounded(op), op.activation, y, gate.rows, gemm_scratch_);
    return;
  }
  float *other = reinterpret_cast<float *>(scratch_ + offsets_[plan_.op_buffer(place)]);
  product(op, gate, {}, y);
  product(op, up, {}, other);
  gated_act(pool_, y, gate.rows, other, gate.rows, rows(op.out[0]), gate.rows, op.activation, y, gate.rows);
}

void ProgramCall::run_attention(const Op &op, std::size_t place) {
  keep(1, &ProgramSegment::k);
  keep(2, &ProgramSegment::v);
  const Strided q = array(op.in[0]), k = array(op.in[1]), v = array(op.in[2]), y = array(op.out[0]);
  for (const ProgramSegment &segment : inputs_.segments) {
    std::vector<KeyPiece> pieces = segment.kept;
    pieces.push_back({rows_of(k, segment.first, segment.count), rows_of(v, segment.first, segment.count)});
    attention(pool_, rows_of(q, segment.first, segment.count), pieces, op.in[5] == kNone ? nullptr : segment.mask, op.number,
              rows_of(y, segment.first, segment.count), scratch_ + offsets_[plan_.op_buffer(place)]);
  }
}

void ProgramCall::run_experts(const Op &op, std::size_t place) {
  const MixtureShape shape = plan_.mixture_shape(op);
  const QuantizedRows *x = plan_.expert_forms[0].rounded ? &rounded(op) : nullptr;
  mixture(pool_, shape, inputs_.positions, floats(op.in[0]), x, indices(op.in[1]), floats(op.in[2]), experts_,
          floats(op.out[0]), scratch_ + offsets_[plan_.op_buffer(place)], gemm_scratch_);
}

void ProgramCall::run_route(const Op &op, std::size_t place) {
  const RoutingRule &rule = op.routing;
  const float *logits = floats(op.in[0]), *bias = vector(op.weights[0]), *factors = vector(op.weights[1]);
  std::int64_t *index = const_cast<std::int64_t *>(indices(op.out[0]));
  float *weight = floats(op.out[1]), *wanted = reinterpret_cast<float *>(scratch_ + offsets_[plan_.op_buffer(place)]);
  const auto run = [&](std::int64_t first, std::int64_t count) {
    route(pool_, rule, logits + first * rule.experts, bias, factors, count, wanted, index + first * rule.chosen,
          weight + first * rule.chosen);
  };
  if (rule.capacity == 0) return run(0, inputs_.positions);
  for (const ProgramSegment &segment : inputs_.segments) run(segment.first, segment.count);  // blocks are of one text
}

void ProgramCall::run_binary(const Op &op) {
  const int a = op.in[0], b = op.in[1], y = op.out[0];
  const Array &out = value(y).array;
  const Binary kind = op.kind == OpKind::add ? Binary::add : Binary::multiply;
  if (same_layout(value(a).array, out) && same_layout(value(b).array, out)) {
    binary_flat(pool_, kind, floats(a), floats(b), count(y), floats(y));
  } else if (kind == Binary::multiply && same_layout(value(a).array, out) && count(b) == 1) {
    scale(pool_, floats(a), *floats(b), count(y), floats(y));
  } else {
    binary(pool_, kind, array(a), array(b), array(y));
  }
}

void ProgramCall::run_lookup(const Op &op) {
  const std::size_t weight = static_cast<std::size_t>(op.weights[0]);
  const float *table = weights_.vector(weight);
  const std::int64_t size = graph_.weights[weight].count;
  const std::int64_t *which = indices(op.in[0]);
  float *y = floats(op.out[0]);
  for (std::int64_t i = 0; i < count(op.out[0]); ++i) {
    if (which[i] < 0 || which[i] >= size) {
      fail(EK_MALFORMED_FILE, op.label, ": index ", which[i], " of ", size, " values; export the bundle again");
    }
    y[i] = table[which[i]];
  }
}

}  // namespace edgekit
