// What each op does to shapes.
#include "executor/graph_builder.h"

namespace edgekit {

void GraphBuilder::infer(const Json &json) {
  switch (op_.kind) {
    case OpKind::rms_norm:
      return infer_norm(json);
    case OpKind::linear:
      return infer_linear(json);
    case OpKind::linear_gated:
      return infer_linear_gated(json);
    case OpKind::gated_act:
      return infer_gated_act(json);
    case OpKind::rope:
      return infer_rope();
    case OpKind::attention:
      op_.number = finite(json, "scale");
      return infer_attention();
    case OpKind::experts:
      return infer_experts(json);
    case OpKind::add:
    case OpKind::multiply:
      return infer_binary();
    case OpKind::scale:
      op_.number = finite(json, "by");
      return define(0, ValueType::number, number(0));
    case OpKind::route:
      return infer_route(json);
    case OpKind::select:
      return infer_lookup();
    case OpKind::view:
      return infer_view(json);
    case OpKind::transpose:
      return infer_transpose(json);
    case OpKind::copy:
      break;
  }
}

const Array &GraphBuilder::number(std::size_t input) {
  const int id = op_.in[input];
  if (id == kNone) wrong("needs input ", input);
  const Value &value = graph_.values[static_cast<std::size_t>(id)];
  if (value.type != ValueType::number) wrong("input ", input, " is not an array of floats");
  return value.array;
}

const Array &GraphBuilder::dense_number(std::size_t input) {
  number(input);
  op_.in[input] = dense(op_.in[input]);
  return number(input);
}

// The value itself where it is contiguous, else a copy that is.
int GraphBuilder::dense(int value) {
  if (is_contiguous(graph_.values[static_cast<std::size_t>(value)].array)) return value;
  const auto found = copies_.find(value);
  if (found != copies_.end()) return found->second;
  Op copy;
  copy.kind = OpKind::copy;
  copy.label = op_.label + ": copy";
  copy.in = {value};
  copy.quantized = {kNone};
  const int made = static_cast<int>(graph_.values.size());
  copy.out = {made};
  graph_.ops.push_back(copy);
  Value added;
  added.array = contiguous(graph_.values[static_cast<std::size_t>(value)].array.shape, where_);
  added.alias = made;
  graph_.values.push_back(added);
  copies_.emplace(value, made);
  return made;
}

std::int64_t GraphBuilder::columns(const Array &array) const {
  if (array.rank() == 0 || array.shape.back().power != 0) {
    wrong("the last axis of an array of shape ", text(array.shape), " has no fixed length");
  }
  return array.shape.back().factor;
}

const WeightShape &GraphBuilder::matrix(std::size_t place) {
  if (op_.weights[place] == kNone) wrong("needs weight ", place);
  WeightShape &weight = graph_.weights[static_cast<std::size_t>(op_.weights[place])];
  if (weight.rows == 0) wrong("weight ", weight.name, " is not listed as a matrix");
  weight.is_matrix = true;
  return weight;
}

const WeightShape &GraphBuilder::vector(std::size_t place, std::int64_t count) {
  if (op_.weights[place] == kNone) wrong("needs weight ", place);
  const WeightShape &weight = graph_.weights[static_cast<std::size_t>(op_.weights[place])];
  if (count >= 0 && weight.count != count) wrong("weight ", weight.name, " has ", weight.count, " values, not ", count);
  return weight;
}

void GraphBuilder::define(std::size_t output, ValueType type, const Array &array, int alias) {
  const int id = op_.out[output];
  Value &value = graph_.values[static_cast<std::size_t>(id)];
  value.type = type;
  value.array = array;
  value.alias = alias == kNone ? id : alias;
  if (defined_[static_cast<std::size_t>(id)]) wrong("makes value ", id, " twice");
  defined_[static_cast<std::size_t>(id)] = true;
}

void GraphBuilder::infer_norm(const Json &json) {
  op_.number = finite(json, "eps");
  if (op_.number < 0) wrong("eps is negative");
  const std::int64_t width = columns(number(0));
  if (number(0).stride.back() != Extent{}) dense_number(0);
  if (op_.weights[0] != kNone) vector(0, width);
  define(0, ValueType::number, number(0));  // in the layout of its input, so that it can overwrite it
}

void GraphBuilder::infer_linear(const Json &json) {
  op_.act_bits = static_cast<int>(whole(json, "act_bits", 8, 16));
  if (op_.act_bits != 8 && op_.act_bits != 16) wrong("act_bits is ", op_.act_bits, ", not 8 or 16");
  const std::int64_t width = columns(dense_number(0));
  const WeightShape &weights = matrix(0);
  if (weights.columns != width) {
    wrong("weight ", weights.name, " has ", weights.columns, " columns for rows of ", width);
  }
  const std::int64_t out = weights.rows;
  Shape shape = number(0).shape;
  shape.back() = Extent{out};
  const Array array = contiguous(shape, where_);
  if (op_.weights[1] != kNone) vector(1, out);
  if (op_.in[1] != kNone && dense_number(1).shape != shape) {
    wrong("adds an array of shape ", text(number(1).shape), " to one of ", text(shape));
  }
  if (op_.weights[2] != kNone || op_.weights[3] != kNone) {
    infer_adapter(out, width);
  } else if (op_.in[2] != kNone) {
    wrong("has factors for an adapter, and none");
  }
  define(0, ValueType::number, array);
}

// The low-rank adapter of a linear [out, width].
void GraphBuilder::infer_adapter(std::int64_t out, std::int64_t width) {
  const WeightShape &down = matrix(2), &up = matrix(3);
  if (down.columns != width || up.rows != out || up.columns != down.rows) {
    wrong("its adapter of [", down.rows, ", ", down.columns, "] and [", up.rows, ", ", up.columns,
          "] does not fit a matrix of [", out, ", ", width, "]");
  }
  op_.rank = down.rows;
  Shape inner = number(0).shape;
  inner.back() = Extent{op_.rank};
  contiguous(inner, where_);  // refuses what is too large
  if (op_.in[2] == kNone) return;
  number(2);
  if (graph_.values[static_cast<std::size_t>(op_.in[2])].input != Input::adapter) {
    wrong("the factors of its adapter are not the input adapter");
  }
  inner.pop_back();
  const Extent rows = elements(inner), t{1, 1};
  if (rows != t) wrong("its adapter has factors for positions, and rows of ", text(number(0).shape));
}

void GraphBuilder::infer_linear_gated(const Json &json) {
  op_.activation = activation(json);
  op_.act_bits = 8;
  const std::int64_t width = columns(dense_number(0));
  const std::int64_t rows = matrix(0).rows;
  if (matrix(0).columns != width || matrix(1).columns != width || matrix(1).rows != rows) {
    wrong("its weights do not fit rows of ", width, " or each other");
  }
  Shape shape = number(0).shape;
  shape.back() = Extent{rows};
  define(0, ValueType::number, contiguous(shape, where_));
}

void GraphBuilder::infer_gated_act(const Json &json) {
  op_.activation = activation(json);
  const Array array = dense_number(0);
  if (dense_number(1).shape != array.shape) wrong("gate and up differ in shape");
  columns(array);
  define(0, ValueType::number, array);
}

void GraphBuilder::infer_rope() {
  const Array array = number(0);
  const std::int64_t width = columns(array);
  const Shape table{Extent{1, 1}, Extent{shapes_.rotary}};
  if (array.rank() != 4 || array.shape[2] != Extent{1, 1} || array.stride[3] != Extent{}) {
    wrong("rotates an array of shape ", text(array.shape), ", not [1, heads, t, width]");
  }
  for (const std::size_t input : {std::size_t{1}, std::size_t{2}}) {
    number(input);
    const Value &value = graph_.values[static_cast<std::size_t>(op_.in[input])];
    if (value.input != Input::cos && value.input != Input::sin) wrong("its tables are not the inputs cos and sin");
  }
  if (2 * shapes_.rotary > width) wrong("rotates ", 2 * shapes_.rotary, " of ", width, " elements");
  define(0, ValueType::number, contiguous(array.shape, where_));
}

void GraphBuilder::infer_attention() {
  const Array &q = number(0), &k = number(1), &v = number(2);
  const Extent t{1, 1};
  const Shape kv{Extent{1}, Extent{shapes_.kv_heads}, t, Extent{shapes_.head_dim}};
  const bool fits = q.rank() == 4 && q.shape[0] == Extent{} && q.shape[2] == t && q.shape[3] == kv[3] &&
                    q.shape[1].power == 0 && shapes_.kv_heads > 0 && q.shape[1].factor % shapes_.kv_heads == 0;
  if (!fits || k.shape != kv || v.shape != kv) {
    wrong("queries ", text(q.shape), ", keys ", text(k.shape), " and values ", text(v.shape),
          " do not fit the layer's KV ", text(kv));
  }
  for (const Array *array : {&q, &k, &v}) {
    if (array->stride[3] != Extent{}) wrong("reads an array whose last axis is not contiguous");
  }
  for (const std::size_t input : {std::size_t{3}, std::size_t{4}}) {
    const int id = op_.in[input];
    const Input wanted = input == 3 ? Input::prefix_k : Input::prefix_v;
    if (id == kNone || graph_.values[static_cast<std::size_t>(id)].input != wanted) {
      wrong("its prefix is not the program's");
    }
  }
  if (op_.in[5] != kNone && graph_.values[static_cast<std::size_t>(op_.in[5])].type != ValueType::mask) {
    wrong("its mask is not the program's");
  }
  // Written as [1, t, heads, width], so that joining the heads moves nothing.
  const Shape joined{Extent{1}, t, q.shape[1], q.shape[3]};
  define(0, ValueType::number, transposed(contiguous(joined, where_), 1, 2));
}

void GraphBuilder::infer_experts(const Json &json) {
  op_.activation = activation(json);
  op_.act_bits = 8;
  op_.count = whole(json, "experts", 1, 1 << 20);
  graph_.experts = op_.count;
  const Array x = dense_number(0);
  const int chosen = op_.in[1];
  if (chosen == kNone || graph_.values[static_cast<std::size_t>(chosen)].type != ValueType::index) {
    wrong("input 1 is not an array of indices");
  }
  for (const Op &op : graph_.ops) {
    if (op.kind == OpKind::route && op.out[0] == chosen && op.routing.experts != op_.count) {
      wrong("mixes ", op_.count, " experts, its router chooses among ", op.routing.experts);
    }
  }
  const Shape index = graph_.values[static_cast<std::size_t>(chosen)].array.shape;
  const Extent t{1, 1};
  const bool fits = x.rank() == 2 && x.shape[0] == t && index.size() == 2 && index[0] == t && index[1].power == 0 &&
                    index[1].factor >= 1 && dense_number(2).shape == index;
  if (!fits) wrong("its inputs are not [t, width], [t, k] and [t, k]");
  const WeightShape &gate_up = graph_.expert_weights[0], &down = graph_.expert_weights[1];
  const std::int64_t width = columns(x);
  if (gate_up.columns != width || down.rows != width || gate_up.rows != 2 * down.columns) {
    wrong("experts of [", gate_up.rows, ", ", gate_up.columns, "] and [", down.rows, ", ", down.columns,
          "] do not fit rows of ", width);
  }
  define(0, ValueType::number, x);
}

void GraphBuilder::infer_binary() {
  const Array &a = number(0), &b = number(1);
  const Shape shape = broadcast(a.shape, b.shape);
  if (shape.empty()) wrong("arrays of shape ", text(a.shape), " and ", text(b.shape), " do not fit");
  // Equal layouts stay as they are: the arrays are walked through in the order of memory.
  define(0, ValueType::number, same_layout(a, b) || (a.shape == shape && elements(b.shape) == Extent{})
                                   ? a
                                   : contiguous(shape, where_));
}

void GraphBuilder::infer_route(const Json &json) {
  const Array logits = dense_number(0);
  const std::int64_t experts = columns(logits);
  if (logits.rank() != 2 || logits.shape[0] != Extent{1, 1}) {
    wrong("routes by logits of shape ", text(logits.shape), ", not [t, experts]");
  }
  for (const std::size_t input : {std::size_t{0}, std::size_t{1}}) {
    if (op_.weights[input] != kNone) vector(input, experts);
  }
  const RoutingRule &rule = op_.routing = routing_attributes(where_, json, experts);
  const Shape chosen{Extent{1, 1}, Extent{rule.chosen}};
  define(0, ValueType::index, contiguous(chosen, where_));
  define(1, ValueType::number, contiguous(chosen, where_));
}

void GraphBuilder::infer_lookup() {
  const int id = op_.in[0];
  if (id == kNone || graph_.values[static_cast<std::size_t>(id)].type != ValueType::index) {
    wrong("input 0 is not an array of indices");
  }
  const Array &index = graph_.values[static_cast<std::size_t>(id)].array;
  vector(0, -1);
  const Extent count = elements(index.shape);
  if (op_.kind == OpKind::select && count != Extent{} && count != Extent{1, 1}) wrong("selects by more than one index");
  define(0, ValueType::number, contiguous(index.shape, where_));
}

void GraphBuilder::infer_view(const Json &json) {
  Shape shape;
  for (const Json &axis : json.at("shape").array()) {
    if (axis.kind() == Json::Kind::string) {
      if (axis.string() != "t") wrong("its shape holds ", axis.string(), ", which is neither a length nor \"t\"");
      shape.push_back(Extent{1, 1});
    } else {
      shape.push_back(Extent{axis.integer(), 0});
      if (shape.back().factor < 1 || shape.back().factor >= kMaxElements) wrong("its shape has an axis of no length");
    }
  }
  const int id = op_.in[0];
  if (id == kNone) wrong("needs an input");
  const ValueType type = graph_.values[static_cast<std::size_t>(id)].type;
  if (type != ValueType::number && type != ValueType::index) wrong("cannot show this input in another shape");
  if (type == ValueType::number) dense_number(0);  // indices are contiguous always
  const Value &value = graph_.values[static_cast<std::size_t>(op_.in[0])];
  const Array array = contiguous(shape, where_);
  if (elements(shape) != elements(value.array.shape)) {
    wrong("shows an array of shape ", text(value.array.shape), " as ", text(shape));
  }
  define(0, type, array, value.alias);
}

void GraphBuilder::infer_transpose(const Json &json) {
  const std::vector<Json> &axes = json.at("axes").array();
  const Array array = number(0);
  const std::int64_t rank = array.rank();
  std::int64_t chosen[2] = {};
  if (axes.size() != 2) wrong("must swap two axes");
  for (std::size_t i = 0; i < 2; ++i) {
    chosen[i] = axes[i].integer();
    if (chosen[i] < 0) chosen[i] += rank;
    if (chosen[i] < 0 || chosen[i] >= rank) wrong("swaps an axis that an array of shape ", text(array.shape), " lacks");
  }
  define(0, ValueType::number, transposed(array, static_cast<int>(chosen[0]), static_cast<int>(chosen[1])),
         graph_.values[static_cast<std::size_t>(op_.in[0])].alias);
}

}  // namespace edgekit
