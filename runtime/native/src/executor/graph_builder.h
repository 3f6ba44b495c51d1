// Turns the JSON of an entry into a Graph, one op after the other.
#ifndef EDGEKIT_EXECUTOR_GRAPH_BUILDER_H
#define EDGEKIT_EXECUTOR_GRAPH_BUILDER_H

#include <map>
#include <string>
#include <vector>

#include "error.h"
#include "executor/attributes.h"
#include "executor/graph.h"

namespace edgekit {

class GraphBuilder {
 public:
  GraphBuilder(const std::string &name, const ProgramShapes &shapes);

  Graph build(const Json &entry);

 private:
  // graph_builder.cpp: names and references.
  void add_inputs(const Json &entry);
  void add_op(const Json &json);
  void set_outputs(const Json &entry);
  int reference(const Json &json);
  int weight(const std::string &name);
  std::int64_t whole(const Json &json, const char *key, std::int64_t least, std::int64_t most) const;
  float finite(const Json &json, const char *key) const;
  Activation activation(const Json &json) const;

  // graph_shapes.cpp: what an op does to shapes. Every one checks its inputs and defines its outputs.
  void infer(const Json &json);
  void infer_norm(const Json &json);
  void infer_linear(const Json &json);
  void infer_adapter(std::int64_t out, std::int64_t width);
  void infer_linear_gated(const Json &json);
  void infer_gated_act(const Json &json);
  void infer_rope();
  void infer_attention();
  void infer_experts(const Json &json);
  void infer_binary();
  void infer_route(const Json &json);
  void infer_lookup();
  void infer_view(const Json &json);
  void infer_transpose(const Json &json);

  const Array &number(std::size_t input);       // array of a float input of the current op
  const Array &dense_number(std::size_t input);  // the same, made contiguous where it is not
  std::int64_t columns(const Array &array) const;  // of the last axis, which must not be positions
  const WeightShape &matrix(std::size_t place);
  const WeightShape &vector(std::size_t place, std::int64_t count);  // count < 0: any
  void define(std::size_t output, ValueType type, const Array &array, int alias = kNone);
  int dense(int value);

  template <typename... Parts>
  [[noreturn]] void wrong(const Parts &...parts) const {
    fail(EK_MALFORMED_FILE, where_, ": ", parts..., "; export the bundle again");
  }

  Graph graph_;
  ProgramShapes shapes_;
  std::string where_;  // of the op at hand
  Op op_;
  std::map<std::string, std::vector<std::int64_t>> declared_;  // shapes of the entry's weights
  std::map<std::string, int> used_;  // place in graph_.weights
  std::vector<bool> defined_;
  std::map<int, int> copies_;  // contiguous copies of values
};

}  // namespace edgekit

#endif  // EDGEKIT_EXECUTOR_GRAPH_BUILDER_H
