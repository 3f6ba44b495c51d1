#include "executor/graph_builder.h"

namespace edgekit {
namespace {

// Generous for a layer; a list that passes it is damaged.
constexpr std::int64_t kMaxValues = 65536;
constexpr std::size_t kMaxOps = 65536;

struct OpName {
  const char *name;
  OpKind kind;
  std::size_t in, weights, out;
};

constexpr OpName kOps[] = {
    {"rms_norm", OpKind::rms_norm, 1, 1, 1},   {"linear", OpKind::linear, 3, 4, 1},
    {"linear_gated", OpKind::linear_gated, 1, 2, 1}, {"gated_act", OpKind::gated_act, 2, 0, 1},
    {"rope", OpKind::rope, 3, 0, 1},           {"attention", OpKind::attention, 6, 0, 1},
    {"experts", OpKind::experts, 3, 2, 1},     {"add", OpKind::add, 2, 0, 1},
    {"mul", OpKind::multiply, 2, 0, 1},        {"scale", OpKind::scale, 1, 0, 1},
    {"route", OpKind::route, 1, 2, 2},         {"select", OpKind::select, 1, 1, 1},
    {"view", OpKind::view, 1, 0, 1},           {"transpose", OpKind::transpose, 1, 0, 1},
};

struct InputName {
  const char *name;
  Input input;
};

constexpr InputName kInputs[] = {
    {"x", Input::x},     {"embedded", Input::x}, {"soft", Input::soft}, {"prefix_k", Input::prefix_k},
    {"prefix_v", Input::prefix_v}, {"cos", Input::cos}, {"sin", Input::sin},   {"query_scale", Input::query_scale},
    {"adapter", Input::adapter},
    {"mask", Input::mask}, {"phase", Input::phase},
    {"dense.0", Input::dense_0}, {"dense.1", Input::dense_1}, {"dense.2", Input::dense_2}, {"dense.3", Input::dense_3},
};

}  // namespace

GraphBuilder::GraphBuilder(const std::string &name, const ProgramShapes &shapes)
    : shapes_(shapes), where_("program " + name) {
  graph_.name = name;
}

Graph GraphBuilder::build(const Json &entry) {
  const std::string program = where_;
  const std::int64_t values = whole(entry, "values", 1, kMaxValues);
  graph_.values.resize(static_cast<std::size_t>(values));
  defined_.resize(graph_.values.size(), false);
  for (const auto &[name, shape] : entry.at("weights").object()) {
    std::vector<std::int64_t> axes;
    for (const Json &axis : shape.array()) {
      const std::int64_t length = axis.integer();
      if (length < 1 || length >= kMaxElements) wrong("weight ", name, " has an axis of length ", length);
      axes.push_back(length);
    }
    declared_.emplace(name, axes);
  }
  add_inputs(entry);
  const std::vector<Json> &ops = entry.at("ops").array();
  if (ops.size() > kMaxOps) wrong("has ", ops.size(), " ops");
  for (std::size_t i = 0; i < ops.size(); ++i) {
    where_ = program + ": ops[" + std::to_string(i) + "]";
    add_op(ops[i]);
  }
  where_ = program;
  set_outputs(entry);
  return std::move(graph_);
}

void GraphBuilder::add_inputs(const Json &entry) {
  const std::string &where = where_;
  const Extent t{1, 1};
  bool seen[static_cast<int>(Input::none)] = {};
  const std::vector<Json> &names = entry.at("inputs").array();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string &name = names[i].string();
    const InputName *known = nullptr;
    for (const InputName &candidate : kInputs) {
      if (name == candidate.name) known = &candidate;
    }
    if (known == nullptr) fail(EK_UNSUPPORTED_BUNDLE, where_, ": this library does not know the input ", name);
    if (shapes_.given.count(known->input) == 0) wrong("takes the input ", name, ", which it is not given");
    if (i >= graph_.values.size()) wrong("has more inputs than values");
    if (seen[static_cast<int>(known->input)]) wrong("takes the input ", name, " twice");
    seen[static_cast<int>(known->input)] = true;
    Value &value = graph_.values[i];
    value.input = known->input;
    value.alias = static_cast<int>(i);
    switch (known->input) {
      case Input::x:
      case Input::soft:
      case Input::dense_0:
      case Input::dense_1:
      case Input::dense_2:
      case Input::dense_3:
        value.array = contiguous({Extent{1}, t, Extent{shapes_.hidden}}, where);
        break;
      case Input::prefix_k:
      case Input::prefix_v:
        value.type = ValueType::prefix;
        break;
      case Input::cos:
      case Input::sin:
        value.array = contiguous({t, Extent{shapes_.rotary}}, where);
        break;
      case Input::query_scale:
      case Input::adapter:
        value.array = contiguous({t, Extent{1}}, where);
        break;
      case Input::mask:
        value.type = ValueType::mask;
        graph_.uses_mask = true;
        break;
      case Input::phase:
        value.type = ValueType::index;
        value.array = contiguous({Extent{1}, t, Extent{1}}, where);
        break;
      case Input::none:
        break;
    }
    defined_[i] = true;
  }
}

int GraphBuilder::reference(const Json &json) {
  if (json.is_null()) return kNone;
  const std::int64_t value = json.integer();
  if (value < 0 || value >= static_cast<std::int64_t>(defined_.size())) {
    wrong("names value ", value, " of ", defined_.size());
  }
  return static_cast<int>(value);
}

// Place of a weight among those that the layer's run has to hold.
int GraphBuilder::weight(const std::string &name) {
  const auto found = used_.find(name);
  if (found != used_.end()) return found->second;
  const auto declared = declared_.find(name);
  if (declared == declared_.end()) wrong("names the weight ", name, ", which the program does not list");
  WeightShape weight;
  weight.name = name;
  weight.count = 1;
  for (const std::int64_t axis : declared->second) {
    weight.count *= axis;
    if (weight.count >= kMaxElements) wrong("weight ", name, " is too large");
  }
  if (declared->second.size() == 2) {
    weight.rows = declared->second[0];
    weight.columns = declared->second[1];
  }
  const int place = static_cast<int>(graph_.weights.size());
  graph_.weights.push_back(weight);
  used_.emplace(name, place);
  return place;
}

void GraphBuilder::add_op(const Json &json) {
  const std::string &name = json.at("op").string();
  const OpName *known = nullptr;
  for (const OpName &candidate : kOps) {
    if (name == candidate.name) known = &candidate;
  }
  if (known == nullptr) {
    fail(EK_UNSUPPORTED_BUNDLE, where_, ": this library does not know the op ", name,
         "; update edgekit or export the bundle again");
  }
  where_ += " (" + name + ")";
  op_ = Op{};
  op_.kind = known->kind;
  op_.label = where_;
  const auto list = [&](const char *key) -> const std::vector<Json> & {
    static const std::vector<Json> none;
    const Json *found = json.find(key);
    return found == nullptr ? none : found->array();
  };
  for (const Json &value : list("in")) {
    const int id = reference(value);
    if (id != kNone && !defined_[static_cast<std::size_t>(id)]) wrong("reads value ", id, " before it is made");
    op_.in.push_back(id);
  }
  std::vector<std::string> weights;
  for (const Json &value : list("w")) weights.push_back(value.is_null() ? "" : value.string());
  for (const Json &value : list("out")) {
    const int id = reference(value);
    if (id == kNone || defined_[static_cast<std::size_t>(id)]) wrong("makes a value that exists already");
    op_.out.push_back(id);
  }
  // Inputs and weights at the end of the list may be left out altogether.
  if (op_.in.size() > known->in || weights.size() > known->weights || op_.out.size() != known->out) {
    wrong("has ", op_.in.size(), " inputs, ", weights.size(), " weights and ", op_.out.size(), " outputs, not ",
          known->in, ", ", known->weights, " and ", known->out);
  }
  op_.in.resize(known->in, kNone);
  weights.resize(known->weights);
  op_.quantized.assign(op_.in.size(), kNone);
  if (op_.kind == OpKind::experts) {
    if (!graph_.expert_weights.empty()) wrong("is a second mixture of experts; this library runs one per layer");
    for (const char *part : {"gate_up", "down"}) {
      const auto declared = declared_.find(std::string("experts.") + part);
      if (declared == declared_.end() || declared->second.size() != 2) {
        wrong("the program does not list experts.", part, " as a matrix");
      }
      graph_.expert_weights.push_back({part, true, declared->second[0], declared->second[1], 0});
    }
    if (weights[0] != "experts.gate_up" || weights[1] != "experts.down") {
      wrong("its weights must be experts.gate_up and experts.down");
    }
  } else {
    for (const std::string &each : weights) op_.weights.push_back(each.empty() ? kNone : weight(each));
  }
  infer(json);
  graph_.ops.push_back(op_);
}

void GraphBuilder::set_outputs(const Json &entry) {
  const std::vector<Json> &outputs = entry.at("outputs").array();
  if (outputs.size() != 1 && outputs.size() != 3) wrong("has ", outputs.size(), " outputs; there must be 1 or 3");
  const Extent t{1, 1};
  const Shape hidden{Extent{1}, t, Extent{shapes_.hidden}};
  const Shape kv{Extent{1}, Extent{shapes_.kv_heads}, t, Extent{shapes_.head_dim}};
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const int id = reference(outputs[i]);
    if (id == kNone || !defined_[static_cast<std::size_t>(id)]) wrong("never makes its output ", i);
    const Value &value = graph_.values[static_cast<std::size_t>(id)];
    const Shape &wanted = i == 0 ? hidden : kv;
    if (value.type != ValueType::number || value.array.shape != wanted) {
      wrong("output ", i, " has shape ", text(value.array.shape), ", not ", text(wanted));
    }
    graph_.outputs.push_back(id);
  }
  for (const Op &op : graph_.ops) {
    if (op.kind != OpKind::attention) continue;
    const bool kept = graph_.outputs.size() == 3 && op.in[1] == graph_.outputs[1] && op.in[2] == graph_.outputs[2];
    if (!kept) wrong("does not give the keys and values of its attention as outputs 1 and 2");
  }
}

std::int64_t GraphBuilder::whole(const Json &json, const char *key, std::int64_t least, std::int64_t most) const {
  return whole_attribute(where_, json, key, least, most);
}

float GraphBuilder::finite(const Json &json, const char *key) const { return finite_attribute(where_, json, key); }

Activation GraphBuilder::activation(const Json &json) const { return activation_attribute(where_, json); }

std::int64_t Graph::rows(int value) const {
  Shape front = values[static_cast<std::size_t>(value)].array.shape;
  front.pop_back();
  return elements(front).factor;
}

Graph parse_graph(const std::string &name, const Json &entry, const ProgramShapes &shapes) {
  Graph graph = GraphBuilder(name, shapes).build(entry);
  assign_storage(graph);
  return graph;
}

}  // namespace edgekit
