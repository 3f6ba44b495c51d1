// The op list of a manifest entry, checked: references, attributes and shapes; and where its values are stored.
#ifndef EDGEKIT_EXECUTOR_GRAPH_H
#define EDGEKIT_EXECUTOR_GRAPH_H

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "executor/arrays.h"
#include "executor/weights.h"
#include "kernels/routing.h"
#include "json.h"

namespace edgekit {

// The inputs that ProgramInputs has, in its order; those of `dense` by their places in it.
enum class Input { x, soft, prefix_k, prefix_v, cos, sin, query_scale, adapter, mask, phase, dense_0, dense_1, dense_2, dense_3, none };

constexpr Input kDenseInputs[] = {Input::dense_0, Input::dense_1, Input::dense_2, Input::dense_3};

// What an entry leaves to the model: the width of x, the layer's KV heads and their width, the columns of cos and
// sin; and which inputs its calls give, without which none may be read.
struct ProgramShapes {
  std::int64_t hidden = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t rotary = 0;
  std::set<Input> given = {Input::x};
};

enum class OpKind {
  rms_norm, linear, linear_gated, gated_act, rope, attention, experts, add, multiply, scale, route, select, view,
  transpose,
  copy,  // not in op lists: makes a value contiguous for an op that needs it so
};

constexpr int kNone = -1;

struct Op {
  OpKind kind{};
  std::string label;         // "ops[3] (linear)", for messages
  std::vector<int> in, out;  // values; kNone where an input is left out
  std::vector<int> weights;  // places in Graph::weights; kNone where left out
  float number = 0;          // eps, scale or by
  int act_bits = 16;
  Activation activation = Activation::silu;
  std::int64_t count = 0;  // experts
  std::int64_t rank = 0;   // of a linear's adapter: the rows of weights[2], 0 where there is none
  RoutingRule routing;
  std::vector<int> quantized;  // for in[i] that products read: place in Graph::quantized, else kNone
};

enum class ValueType { number, index, prefix, mask };

struct Value {
  ValueType type = ValueType::number;
  Array array;
  Input input = Input::none;
  int storage = kNone;   // place in Graph::storage, none for prefix and mask
  int alias = kNone;     // the value whose elements it shows in another shape, itself if none
};

// Memory of one or more values, one after the other where each overwrites the one before.
struct Storage {
  enum class Kind { scratch, y, input } kind = Kind::scratch;
  Input input = Input::none;
  std::int64_t element = 4;  // bytes
  Extent count;
  int first = 0, last = 0;  // ops
};

// Int8 form of a value [count / columns, columns]: made by the first op that wants it.
struct QuantizedUse {
  int value = kNone;
  std::int64_t columns = 0;
  int first = 0, last = 0;  // ops
};

struct Graph {
  std::string name;
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<int> outputs;                // values: y, or y, k, v
  std::vector<WeightShape> weights;        // of the layer's run
  std::vector<WeightShape> expert_weights;  // of an expert's run: gate_up, down
  std::int64_t experts = 0;
  bool uses_mask = false;
  std::vector<Storage> storage;
  std::vector<QuantizedUse> quantized;
  bool direct[3] = {false, false, false};  // output i is computed where the caller wants it

  std::int64_t rows(int value) const;  // not counting positions: elements per position over the last axis
};

// Throws Error, see Program.
Graph parse_graph(const std::string &name, const Json &entry, const ProgramShapes &shapes);

// Second part of parse_graph: decides storage, overwriting inputs that nothing reads later.
void assign_storage(Graph &graph);

}  // namespace edgekit

#endif  // EDGEKIT_EXECUTOR_GRAPH_H
