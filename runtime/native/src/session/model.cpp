#include "session/model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "error.h"
#include "sampling/roles.h"

namespace edgekit {
namespace {

// Bounds that no model comes near, so that products of sizes stay within 64 bits.
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20, kMaxHeads = std::int64_t{1} << 16;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 24, kMaxTokens = std::int64_t{1} << 30;

class Reader {
 public:
  explicit Reader(const std::string &where) : where_(where) {}

  template <typename... Parts>
  [[noreturn]] void wrong(const Parts &...parts) const {
    fail(EK_MALFORMED_FILE, where_, ": ", parts..., "; export the bundle again");
  }

  std::int64_t whole(const Json &json, const char *key, std::int64_t most) const {
    const std::int64_t value = json.at(key).integer();
    if (value < 1 || value > most) wrong(key, " is ", value, ", not 1..", most);
    return value;
  }

  float positive(const Json &json, const char *key) const {
    const float value = static_cast<float>(json.at(key).number());
    if (!std::isfinite(value) || value <= 0) wrong(key, " is not a positive number");
    return value;
  }

  TableInfo table(const Json &json, const std::string &name, std::int64_t vocabulary) const {
    TableInfo out;
    for (const Json &run : json.at("runs").array()) out.runs.push_back(run.string());
    for (const Json &start : json.at("starts").array()) out.starts.push_back(start.integer());
    out.rows = whole(json, "rows", kMaxTokens);
    out.bits = static_cast<int>(whole(json, "bits", 16));
    if (out.bits != 8 && out.bits != 16) wrong("table ", name, " has ", out.bits, " bits, not 8 or 16");
    bool follow = !out.runs.empty() && out.runs.size() == out.starts.size() && out.starts[0] == 0;
    for (std::size_t i = 0; follow && i < out.starts.size(); ++i) follow = out.starts[i] < out.stop(i);
    if (!follow) wrong("the tiles of table ", name, " do not follow each other");
    if (out.rows != vocabulary) wrong("table ", name, " has ", out.rows, " rows for ", vocabulary, " tokens");
    return out;
  }

  LayerInfo layer(const Json &json, const std::vector<Rope> &ropes, bool packaged) const {
    LayerInfo out;
    if (packaged) {
      out.program = out.run = json.at("package").string();
      const std::int64_t slot = json.at("slot").integer();
      if (slot < 0 || slot > kMaxWidth) wrong("a layer is slot ", slot, " of package ", out.run);
      out.slot = static_cast<std::size_t>(slot);
      if (const Json *mixture = json.find("mixture"); mixture != nullptr && !mixture->is_null()) {
        out.mixture_program = mixture->at("program").string();
        out.mixture_run = mixture->at("run").string();
        if (out.mixture_program.empty() || out.mixture_run.empty()) wrong("the mixture of a layer has no name");
        for (const Json &run : json.at("experts").array()) out.experts.push_back(run.string());
      }
    } else {
      out.program = json.at("program").string();
      out.run = json.at("run").string();
      for (const Json &run : json.at("experts").array()) out.experts.push_back(run.string());
    }
    out.kv_heads = whole(json, "kv_heads", kMaxHeads);
    out.head_dim = whole(json, "head_dim", kMaxHeads);
    const Json &window = json.at("window");
    if (!window.is_null()) out.window = whole(json, "window", kMaxTokens);
    const std::string &rope = json.at("rope").string();
    const auto found = std::find_if(ropes.begin(), ropes.end(), [&](const Rope &each) { return each.name == rope; });
    if (found == ropes.end()) wrong("a layer turns by ", rope, ", which is not among the ropes");
    out.rope = static_cast<std::size_t>(found - ropes.begin());
    return out;
  }

 private:
  const std::string &where_;
};

}  // namespace

std::size_t TableInfo::tile_of(std::int64_t token) const {
  return static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), token) - starts.begin()) - 1;
}

void check_adapter(const Model &model, std::int64_t adapter) {
  if (adapter >= 0 && adapter <= model.adapters) return;
  fail(EK_INVALID_ARGUMENT, "adapter ", adapter, " of a bundle that has ",
       model.adapters == 0 ? "none to switch; export it with --adapter-mode switched" : "one, number 1");
}

Model parse_model(const Json &root, const std::string &where, bool packaged) {
  const Reader reader(where);
  const Json &model = root.at("model");
  Model out;
  out.hidden = reader.whole(model, "hidden_size", kMaxWidth);
  out.vocabulary = reader.whole(model, "vocab_size", kMaxTokens);
  out.embedding_scale = reader.positive(model, "embedding_scale");
  out.causal_prefix = model.at("causal_prefix").boolean();
  out.self_conditioning = model.at("self_conditioning").boolean();
  out.shift_logits = model.at("shift_logits").boolean();
  if (const Json *block = model.find("prefix_block"); block != nullptr && !block->is_null()) {
    out.prefix_block = reader.whole(model, "prefix_block", kMaxPositions);
    if (out.prefix_block != 1 && !out.causal_prefix) reader.wrong("prefix_block of a model without a prefix");
  }
  if (!model.at("canvas_length").is_null()) out.canvas_length = reader.whole(model, "canvas_length", kMaxPositions);
  const Json *positions = model.find("max_positions");
  if (positions != nullptr && !positions->is_null()) {
    out.max_positions = reader.whole(model, "max_positions", std::numeric_limits<std::int64_t>::max());
  }
  if (const Json *adapters = model.find("adapters"); adapters != nullptr && !adapters->is_null()) {
    out.adapters = static_cast<std::int64_t>(adapters->array().size());
    if (out.adapters > 1) fail(EK_UNSUPPORTED_BUNDLE, where, ": has ", out.adapters, " adapters; this library knows one");
  }
  if (const Json *role_head = model.find("role_head"); role_head != nullptr && !role_head->is_null()) {
    out.role_width = reader.whole(*role_head, "width", kMaxWidth);
    out.role_file = role_head->at("file").string();
    const auto &roles = role_head->at("roles").array();
    bool known = roles.size() == static_cast<std::size_t>(kRoles);
    for (std::size_t i = 0; known && i < roles.size(); ++i) known = roles[i].string() == kRoleNames[i];
    if (!known) fail(EK_UNSUPPORTED_BUNDLE, where, ": has a role head for other roles; this library knows premise, connective, derived, conclusion, filler");
  }
  for (const auto &[name, frequencies] : model.at("ropes").object()) {
    Rope rope;
    rope.name = name;
    for (const Json &each : frequencies.array()) {
      rope.inverse_frequency.push_back(static_cast<float>(each.number()));
      if (!std::isfinite(rope.inverse_frequency.back())) reader.wrong("rope ", name, " has an infinite frequency");
    }
    if (rope.inverse_frequency.empty()) reader.wrong("rope ", name, " has no frequencies");
    const Json *scales = model.find("query_scales");
    const Json *scale = scales == nullptr || scales->is_null() ? nullptr : scales->find(name);
    if (scale != nullptr) {
      reader.positive(*scale, "beta");
      rope.beta = scale->at("beta").number();
      rope.period = reader.whole(*scale, "positions", std::numeric_limits<std::int64_t>::max());
    }
    out.ropes.push_back(std::move(rope));
  }
  const Json &tables = model.at("tables");
  out.embedding = reader.table(tables.at("embedding"), "embedding", out.vocabulary);
  if (const Json *head = tables.find("head")) {
    out.tied = false;
    // Packages of a head say themselves which tokens they hold.
    if (!packaged || head->find("runs") != nullptr) out.head = reader.table(*head, "head", out.vocabulary);
  }
  for (const Json &layer : root.at("layers").array()) {
    out.layers.push_back(reader.layer(layer, out.ropes, packaged));
    const LayerInfo &own = out.layers.back();
    if (own.slot == 0) continue;
    const LayerInfo *before = out.layers.size() > 1 ? &out.layers[out.layers.size() - 2] : nullptr;
    const bool follows = before != nullptr && before->run == own.run && before->slot + 1 == own.slot;
    const auto apart = [](const LayerInfo &each) { return !each.mixture_run.empty() || !each.experts.empty(); };
    if (follows && (apart(own) || apart(*before))) {
      reader.wrong("layer ", out.layers.size() - 1, " shares package ", own.run, ", which layers with experts cannot");
    }
    if (!follows) {
      reader.wrong("layer ", out.layers.size() - 1, " is slot ", own.slot, " of package ", own.run,
                   ", which does not follow the layer before");
    }
  }
  if (out.layers.empty()) reader.wrong("the model has no layers");
  return out;
}

}  // namespace edgekit
