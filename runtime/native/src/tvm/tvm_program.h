// Compiled programs of a bundle: their entries in the manifest (export/formats/tvm/writer.py), checked.
#ifndef EDGEKIT_TVM_PROGRAM_H
#define EDGEKIT_TVM_PROGRAM_H

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "executor/weights.h"
#include "flash_layout.h"
#include "json.h"
#include "kernels/matrix.h"
#include "kernels/routing.h"
#include "tvm/tvm_abi.h"

namespace edgekit::tvm {

// The lengths that sizes of arrays may be: of the pass, of the prefix, and of both.
struct Lengths {
  std::int64_t t = 0, p = 0;
};

// An input or output: a size below 0 is one of these.
constexpr std::int64_t kT = -1, kP = -2, kS = -3;

struct Argument {
  std::string name;
  bool is_weight = false;  // `name` is then a tensor of the run
  DLDataType dtype = {2, 32, 1};
  std::vector<std::int64_t> shape;

  std::vector<std::int64_t> sizes(const Lengths &lengths) const;
};

// The matrix whose codes an input is, padding included; none for others.
std::optional<WeightShape> matrix_of(const Argument &argument);

// A function of the library.
struct Function {
  std::string symbol;
  std::vector<Argument> inputs;
  Argument output;
  // Float32 values that it holds at a time: for each position, and besides.
  std::uint64_t live_of_position = 0, live_besides = 0;
};

struct Experts {
  std::int64_t count = 0, width = 0;
  Activation activation = Activation::silu;
  RoutingRule rule;
  std::string bias, factors;    // tensors of the layer's run; empty: none
  std::optional<Function> one;  // of a library that compiles kernels
};

struct Program {
  Function function;
  bool layer = false;   // whether it is one, and if so
  bool masked = false;  // whether its attention has a mask
  std::optional<Experts> experts;
  std::optional<Function> attention, prefix_attention;  // of a library that compiles kernels
};

// The entry of the program `name`; `where` begins messages. `core`: the library takes the core's kernels. Throws Error
// (EK_MALFORMED_FILE, EK_UNSUPPORTED_BUNDLE).
Program parse_program(const std::string &where, const std::string &name, const Json &entry, bool core);

// What a function may take besides weights, and gives: float32, but for the integers `phase`.
struct Expected {
  std::map<std::string, std::vector<std::int64_t>> inputs;
  std::vector<std::int64_t> output;
};

// Throws Error (EK_MALFORMED_FILE) unless a function takes and gives arrays as expected.
void check_arrays(const std::string &where, const Function &function, const Expected &expected);

// Throws Error (EK_MALFORMED_FILE) unless a run holds the weights that a function takes, as it takes them, and
// EK_UNSUPPORTED_BUNDLE for matrices beyond what products compute exactly.
void check_weights(const std::string &where, const Function &function, const Run &run);

}  // namespace edgekit::tvm

#endif  // EDGEKIT_TVM_PROGRAM_H
