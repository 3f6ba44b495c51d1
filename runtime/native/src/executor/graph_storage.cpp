// Which values share memory: views with what they show, results with an operand that nothing reads later, and the
// stream x -> y of a layer with the caller's array.
#include <algorithm>

#include "executor/graph.h"

namespace edgekit {
namespace {

class StorageBuilder {
 public:
  explicit StorageBuilder(Graph &graph) : graph_(graph), last_(graph.values.size(), kNone) {}

  void run() {
    const int end = static_cast<int>(graph_.ops.size());
    for (int i = 0; i < end; ++i) {
      for (const int id : op(i).in) {
        if (id != kNone) last_[root(id)] = i;
      }
    }
    for (const int id : graph_.outputs) last_[root(id)] = end;
    find_direct();
    for (std::size_t id = 0; id < graph_.values.size(); ++id) {
      if (value(id).input != Input::none && value(id).type != ValueType::prefix && value(id).type != ValueType::mask) {
        own(static_cast<int>(id), 0, value(id).input == Input::x ? Storage::Kind::y : Storage::Kind::input);
      }
    }
    for (int i = 0; i < end; ++i) place_outputs(i);
    for (Value &each : graph_.values) {
      if (each.alias != kNone) each.storage = value(each.alias).storage;
    }
    place_result();
    find_quantized();
  }

 private:
  Op &op(int index) { return graph_.ops[static_cast<std::size_t>(index)]; }
  Value &value(std::size_t id) { return graph_.values[id]; }
  std::size_t root(int id) { return static_cast<std::size_t>(value(static_cast<std::size_t>(id)).alias); }
  Storage &storage(std::size_t id) { return graph_.storage[static_cast<std::size_t>(value(id).storage)]; }

  void own(int id, int first, Storage::Kind kind) {
    Value &made = value(static_cast<std::size_t>(id));
    Storage added;
    added.kind = kind;
    added.input = made.input;
    added.element = made.type == ValueType::index ? 8 : 4;
    added.count = elements(made.array.shape);
    added.first = first;
    added.last = std::max(first, last_[static_cast<std::size_t>(id)]);
    made.storage = static_cast<int>(graph_.storage.size());
    graph_.storage.push_back(added);
  }

  // Keys and values can be computed where the caller keeps them if nothing but attention reads them besides.
  void find_direct() {
    for (std::size_t i = 1; i < graph_.outputs.size(); ++i) {
      const int id = graph_.outputs[i];
      bool direct = i == 1 || graph_.outputs[1] != id;
      bool made = false;
      for (const Op &each : graph_.ops) {
        if (std::count(each.out.begin(), each.out.end(), id) != 0) {
          made = each.kind == OpKind::rms_norm || each.kind == OpKind::rope;
        }
        if (std::count(each.in.begin(), each.in.end(), id) != 0) direct = direct && each.kind == OpKind::attention;
      }
      graph_.direct[i] = direct && made;
    }
  }

  // Whether the op may overwrite in[place] with its result.
  static bool overwrites(OpKind kind, std::size_t place) {
    switch (kind) {
      case OpKind::rms_norm:
      case OpKind::scale:
      case OpKind::gated_act:
        return place == 0;
      case OpKind::add:
      case OpKind::multiply:
        return true;
      case OpKind::linear:
        return place == 1;  // the residual
      default:
        return false;
    }
  }

  bool overwrite(int index, int made) {
    const Op &at = op(index);
    for (std::size_t place = 0; place < at.in.size(); ++place) {
      const int candidate = at.in[place];
      if (!overwrites(at.kind, place) || candidate == kNone || last_[root(candidate)] != index) continue;
      Storage &shared = storage(root(candidate));
      if (shared.kind == Storage::Kind::input || shared.element != 4) continue;
      if (!same_layout(value(static_cast<std::size_t>(candidate)).array, value(static_cast<std::size_t>(made)).array)) {
        continue;
      }
      bool read_elsewhere = false;
      for (std::size_t other = 0; other < at.in.size(); ++other) {
        const int id = at.in[other];
        if (other == place || id == kNone || value(root(id)).storage != value(root(candidate)).storage) continue;
        read_elsewhere = true;  // in another order, or after a part of it was overwritten
      }
      if (read_elsewhere) continue;
      value(static_cast<std::size_t>(made)).storage = value(root(candidate)).storage;
      shared.last = std::max(index, last_[static_cast<std::size_t>(made)]);
      return true;
    }
    return false;
  }

  void place_outputs(int index) {
    const OpKind kind = op(index).kind;
    if (kind == OpKind::view || kind == OpKind::transpose) return;
    for (const int made : op(index).out) {
      if (!overwrite(index, made)) own(made, index, Storage::Kind::scratch);
    }
  }

  // The result moves to the caller's array where that is free from the moment it is made.
  void place_result() {
    const std::size_t result = static_cast<std::size_t>(graph_.outputs[0]);
    Storage &own = storage(result);
    const bool whole = is_contiguous(value(result).array);
    if (own.kind == Storage::Kind::scratch && whole) {
      bool free = true;
      for (const Storage &other : graph_.storage) {
        if (other.kind == Storage::Kind::y && other.last >= own.first) free = false;
      }
      if (free) own.kind = Storage::Kind::y;
    }
    graph_.direct[0] = own.kind == Storage::Kind::y && whole;
  }

  void find_quantized() {
    for (int i = 0; i < static_cast<int>(graph_.ops.size()); ++i) {
      Op &at = op(i);
      const bool product =
          at.kind == OpKind::linear || at.kind == OpKind::linear_gated || at.kind == OpKind::experts;
      if (!product || at.act_bits != 8) continue;
      const int read = at.in[0];
      const std::int64_t columns = value(static_cast<std::size_t>(read)).array.shape.back().factor;
      std::size_t place = 0;
      for (; place < graph_.quantized.size(); ++place) {
        const QuantizedUse &use = graph_.quantized[place];
        if (root(use.value) == root(read) && use.columns == columns) break;
      }
      if (place == graph_.quantized.size()) graph_.quantized.push_back({read, columns, i, i});
      graph_.quantized[place].last = i;
      at.quantized[0] = static_cast<int>(place);
    }
  }

  Graph &graph_;
  std::vector<int> last_;  // last op that reads a value or a view of it
};

}  // namespace

void assign_storage(Graph &graph) { StorageBuilder(graph).run(); }

}  // namespace edgekit
