#include "onnx/program_check.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include "error.h"

namespace edgekit {
namespace {

using Names = std::set<std::string, std::less<>>;
using Known = std::map<std::string, Names, std::less<>>;  // operators by domain

constexpr std::string_view kWeightsFile = "weights.bin", kOrtFormat = "ORTM";

constexpr std::uint64_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;
// Fields of onnx.proto by message.
constexpr std::uint64_t kGraph = 7, kTraining = 20, kFunctions = 25;
constexpr std::uint64_t kNode = 1, kInitializer = 5, kSparseInitializer = 15;
constexpr std::uint64_t kOperator = 4, kAttribute = 5, kDomain = 7;
constexpr std::uint64_t kAttributeName = 1, kString = 4, kTensor = 5, kSubgraph = 6, kTensors = 10, kSubgraphs = 11, kSparse = 22,
                        kSparses = 23;
constexpr std::uint64_t kExternalData = 13, kDataLocation = 14;
constexpr std::uint64_t kKey = 1, kValue = 2;
constexpr std::uint64_t kMostField = std::uint64_t{1} << 29;
// Of the model around a binary of a chip's compiler.
constexpr std::string_view kContextDomain = "com.microsoft", kContextOperator = "EPContext", kContextFile = "ep_cache_context";

template <typename... Parts>
[[noreturn]] void refuse(const Parts &...parts) {
  fail(EK_MALFORMED_FILE, parts...);
}

// All operators that the writer emits, of ONNX's own domain; it refuses to write others.
const Names &processor_operators() {
  static const Names names = {
      "Abs", "Add", "ArgMax", "Attention", "BitwiseXor", "Cast", "Clip", "Concat", "Div", "Exp", "Expand", "Gather",
      "GatherElements", "GatherND", "Gelu", "MatMul", "MatMulInteger", "Mul", "RMSNormalization", "Range", "ReduceMax",
      "ReduceSum", "Reshape", "Round", "ScatterElements", "Shape", "Sigmoid", "Slice", "Softmax", "Split", "Squeeze", "Sub",
      "Tanh", "TopK", "Transpose", "Unsqueeze"};
  return names;
}

Known with(const Names &more, const Names &of_microsoft) {
  Names own = processor_operators();
  own.insert(more.begin(), more.end());
  Known out{{"", own}, {"ai.onnx", own}};
  if (!of_microsoft.empty()) out["com.microsoft"] = of_microsoft;
  return out;
}

const Known &operators_of(const std::string &format) {
  static const Known processor = with({}, {});
  static const Known gpu = with({"DequantizeLinear", "Pow", "ReduceMean", "Sqrt"}, {"MatMulNBits"});
  static const Known npu =
      with({"DequantizeLinear", "Identity", "Max", "Pow", "QuantizeLinear", "ReduceMean", "Sqrt"}, {});
  if (format == "onnx") return processor;
  if (format == "onnx-gpu") return gpu;
  if (format == "qnn") return npu;
  fail(EK_INVALID_ARGUMENT, "ONNX models of the format ", format, " are not known");
}

// The fields of a message, one after the other; what is a number has no content.
class Fields {
 public:
  explicit Fields(std::string_view message) : message_(message) {}

  bool next() {
    if (at_ >= message_.size()) return false;
    const std::uint64_t tag = varint(), kind = tag & 7;
    std::size_t start = at_;
    number = tag >> 3;
    if (kind == kVarint) {
      varint();
      start = at_;
    } else if (kind == kBytes) {
      const std::uint64_t length = varint();
      start = at_;
      if (length > message_.size() - at_) does_not_fit();
      at_ += static_cast<std::size_t>(length);
    } else if (kind == kFixed64 || kind == kFixed32) {
      at_ += kind == kFixed64 ? 8 : 4;
      start = at_;
    } else {
      refuse("is not an ONNX model: it has parts of an unknown kind");
    }
    if (number == 0 || number >= kMostField || at_ > message_.size()) does_not_fit();
    content = message_.substr(start, at_ - start);
    return true;
  }

  std::uint64_t number = 0;
  std::string_view content;

 private:
  [[noreturn]] static void does_not_fit() { refuse("is not an ONNX model: its parts do not fit into each other"); }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && at_ < message_.size(); shift += 7) {
      const auto byte = static_cast<std::uint8_t>(message_[at_++]);
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
    refuse("is not an ONNX model: a number in it does not end");
  }

  const std::string_view message_;
  std::size_t at_ = 0;
};

// `beside`: the file that constants may lie in; empty: none.
void check_tensor(std::string_view tensor, std::string_view beside) {
  for (Fields field(tensor); field.next();) {
    if (field.number != kExternalData && field.number != kDataLocation) continue;
    if (beside.empty()) refuse("takes constants from another file");
    if (field.number == kDataLocation) continue;
    bool location = false, own = true;
    std::size_t values = 0;
    for (Fields entry(field.content); entry.next();) {
      location |= entry.number == kKey && entry.content == "location";
      if (entry.number != kValue) continue;
      ++values;
      own &= entry.content == beside;
    }
    if (location && (!own || values != 1)) refuse("takes constants from another file than its own");
  }
}

std::string shown(std::string_view text) { return std::string(text.substr(0, 40)); }

void check_attribute(std::string_view attribute) {
  for (Fields part(attribute); part.next();) {
    if (part.number == kSubgraph || part.number == kSubgraphs || part.number == kSparse || part.number == kSparses) {
      refuse("holds a graph within its graph, or sparse constants");
    }
    if (part.number == kTensor || part.number == kTensors) check_tensor(part.content, {});
  }
}

void check_node(std::string_view node, const Known &known) {
  // Whichever of several a reader takes, all are known.
  std::vector<std::string_view> domains;
  for (Fields field(node); field.next();) {
    if (field.number == kDomain) domains.push_back(field.content);
  }
  if (domains.empty()) domains.emplace_back();
  for (const std::string_view domain : domains) {
    if (known.find(domain) == known.end()) refuse("uses operators of '", shown(domain), "', which no export writes");
  }
  for (Fields field(node); field.next();) {
    if (field.number == kAttribute) check_attribute(field.content);
    if (field.number != kOperator) continue;
    for (const std::string_view domain : domains) {
      if (known.find(domain)->second.count(field.content) != 0) continue;
      refuse("uses the operator '", shown(field.content), "', which no export writes");
    }
  }
}

template <typename CheckNode>
void check_model(std::string_view model, std::string_view beside, CheckNode &&node) {
  if (model.size() > kMostProgramBytes) refuse("has ", model.size(), " bytes, more than any program");
  if (model.size() >= 8 && model.substr(4, 4) == kOrtFormat) refuse("is in ONNX Runtime's own format, not in ONNX");
  bool graph = false;
  for (Fields field(model); field.next();) {
    if (field.number == kFunctions || field.number == kTraining) refuse("defines functions or a training of its own");
    if (field.number != kGraph) continue;
    graph = true;
    for (Fields part(field.content); part.next();) {
      if (part.number == kSparseInitializer) refuse("holds sparse constants");
      if (part.number == kInitializer) check_tensor(part.content, beside);
      if (part.number == kNode) node(part.content);
    }
  }
  if (!graph) refuse("is not an ONNX model: it has no graph");
}

}  // namespace

void check_onnx(std::string_view model, const std::string &format) {
  const Known &known = operators_of(format);
  check_model(model, format == "qnn" ? kWeightsFile : std::string_view(),
              [&](std::string_view node) { check_node(node, known); });
}

void check_context(std::string_view model, const std::vector<std::string> &files) {
  static const Known known{{std::string(kContextDomain), {std::string(kContextOperator)}}};
  check_model(model, {}, [&](std::string_view node) {
    check_node(node, known);
    for (Fields field(node); field.next();) {
      if (field.number != kAttribute) continue;
      bool named = false;
      std::vector<std::string_view> texts;
      for (Fields part(field.content); part.next();) {
        named |= part.number == kAttributeName && part.content == kContextFile;
        if (part.number == kString) texts.push_back(part.content);
      }
      const auto own = [&](std::string_view text) { return std::find(files.begin(), files.end(), text) != files.end(); };
      if (named && !std::all_of(texts.begin(), texts.end(), own)) refuse("names a file that is not beside it");
    }
  });
}

}  // namespace edgekit
