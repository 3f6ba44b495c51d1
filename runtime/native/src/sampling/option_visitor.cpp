#include "sampling/option_visitor.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "error.h"
#include "sampling/python_text.h"

namespace edgekit {
namespace {

[[noreturn]] void bad_integer(const char *name, const std::string &found, const IntegerBounds &bounds) {
  const std::string minimum = std::to_string(bounds.minimum);
  fail(EK_INVALID_ARGUMENT, name, " is ", found, "; use an integer, ",
       bounds.maximum ? minimum + ".." + std::to_string(*bounds.maximum) : "at least " + minimum);
}

bool is_within(std::int64_t value, const IntegerBounds &bounds) {
  return value >= bounds.minimum && (!bounds.maximum || value <= *bounds.maximum);
}

[[noreturn]] void bad_number(const char *name, const std::string &found, const Bounds &bounds) {
  std::ostringstream limit;
  limit << (bounds.exclusive ? "above " : "at least ") << bounds.minimum;
  if (bounds.maximum) limit << " and at most " << *bounds.maximum;
  fail(EK_INVALID_ARGUMENT, name, " is ", found, "; use a number ", limit.str());
}

[[noreturn]] void bad_choice(const char *name, const std::string &found, const std::vector<std::string> &choices) {
  std::string all;
  for (const std::string &one : choices) all += (all.empty() ? "" : ", ") + one;
  fail(EK_INVALID_ARGUMENT, name, " is ", found, "; use one of: ", all);
}

bool is_within(double value, const Bounds &bounds) {
  return std::isfinite(value) && (bounds.exclusive ? value > bounds.minimum : value >= bounds.minimum) &&
         (!bounds.maximum || value <= *bounds.maximum);
}

bool is_one_of(const std::string &value, const std::vector<std::string> &choices) {
  return std::find(choices.begin(), choices.end(), value) != choices.end();
}

// Checks values that are there already.
class Checker : public OptionVisitor {
 public:
  void integer(const char *name, std::int64_t &value, std::int64_t minimum) override {
    check_integer(name, value, {minimum, std::nullopt});
  }
  void integer(const char *name, std::optional<std::int64_t> &value, std::int64_t minimum) override {
    if (value) integer(name, *value, minimum);
  }
  void number(const char *name, double &value, const Bounds &bounds) override {
    if (!is_within(value, bounds)) bad_number(name, python_repr(value), bounds);
  }
  void number(const char *name, std::optional<double> &value, const Bounds &bounds) override {
    if (value) number(name, *value, bounds);
  }
  void flag(const char *, bool &) override {}
  void choice(const char *name, std::string &value, const std::vector<std::string> &choices) override {
    if (!is_one_of(value, choices)) bad_choice(name, "'" + value + "'", choices);
  }
  void token_ids(const char *name, std::vector<std::int64_t> &value) override {
    for (std::int64_t &token : value) integer(name, token, 0);
  }
  bool is_set(const char *, const std::optional<double> &value) override { return value.has_value(); }
  std::string text(const char *, double value) override { return python_repr(value); }
};

// Collects the names.
class Names : public OptionVisitor {
 public:
  std::set<std::string> names;

  void integer(const char *name, std::int64_t &, std::int64_t) override { names.insert(name); }
  void integer(const char *name, std::optional<std::int64_t> &, std::int64_t) override { names.insert(name); }
  void number(const char *name, double &, const Bounds &) override { names.insert(name); }
  void number(const char *name, std::optional<double> &, const Bounds &) override { names.insert(name); }
  void flag(const char *name, bool &) override { names.insert(name); }
  void choice(const char *name, std::string &, const std::vector<std::string> &) override { names.insert(name); }
  void token_ids(const char *name, std::vector<std::int64_t> &) override { names.insert(name); }
  bool is_set(const char *name, const std::optional<double> &) override {
    names.insert(name);
    return false;
  }
  std::string text(const char *, double) override { return {}; }
};

// Takes values from JSON where it has them, and checks those.
class Reader : public OptionVisitor {
 public:
  std::map<std::string, const Json *> found;

  void integer(const char *name, std::int64_t &value, std::int64_t minimum) override {
    if (const Json *json = find(name)) value = read_integer(name, *json, {minimum, std::nullopt});
  }
  void integer(const char *name, std::optional<std::int64_t> &value, std::int64_t minimum) override {
    const Json *json = find(name);
    if (json == nullptr) return;
    value.reset();
    if (!json->is_null()) value = read_integer(name, *json, {minimum, std::nullopt});
  }
  void number(const char *name, double &value, const Bounds &bounds) override {
    if (const Json *json = find(name)) value = read_number(name, *json, bounds);
  }
  void number(const char *name, std::optional<double> &value, const Bounds &bounds) override {
    const Json *json = find(name);
    if (json == nullptr) return;
    value.reset();
    if (!json->is_null()) value = read_number(name, *json, bounds);
  }
  void flag(const char *name, bool &value) override {
    const Json *json = find(name);
    if (json == nullptr) return;
    if (json->kind() != Json::Kind::boolean)
      fail(EK_INVALID_ARGUMENT, name, " is ", python_repr(*json), "; use true or false");
    value = json->boolean();
  }
  void choice(const char *name, std::string &value, const std::vector<std::string> &choices) override {
    const Json *json = find(name);
    if (json == nullptr) return;
    if (json->kind() != Json::Kind::string || !is_one_of(json->string(), choices))
      bad_choice(name, python_repr(*json), choices);
    value = json->string();
  }
  void token_ids(const char *name, std::vector<std::int64_t> &value) override {
    const Json *json = find(name);
    if (json == nullptr) return;
    value.clear();
    if (json->kind() != Json::Kind::array) {
      value.push_back(read_integer(name, *json, {0, std::nullopt}));
      return;
    }
    for (const Json &token : json->array()) value.push_back(read_integer(name, token, {0, std::nullopt}));
  }
  bool is_set(const char *name, const std::optional<double> &value) override {
    const Json *json = find(name);
    return json != nullptr ? !json->is_null() : value.has_value();
  }
  std::string text(const char *name, double value) override {
    const Json *json = find(name);
    return json != nullptr ? python_repr(*json) : python_repr(value);
  }

 private:
  const Json *find(const char *name) const {
    const auto at = found.find(name);
    return at == found.end() ? nullptr : at->second;
  }
  static double read_number(const char *name, const Json &json, const Bounds &bounds) {
    if ((json.kind() != Json::Kind::integer && json.kind() != Json::Kind::number) || !is_within(json.number(), bounds))
      bad_number(name, python_repr(json), bounds);
    return json.number();
  }
};

// Writes values as members of a JSON object.
class TextWriter : public OptionVisitor {
 public:
  std::string members;

  void integer(const char *name, std::int64_t &value, std::int64_t) override { put(name, std::to_string(value)); }
  void integer(const char *name, std::optional<std::int64_t> &value, std::int64_t) override {
    put(name, value ? std::to_string(*value) : "null");
  }
  void number(const char *name, double &value, const Bounds &) override { put(name, python_repr(value)); }
  void number(const char *name, std::optional<double> &value, const Bounds &) override {
    put(name, value ? python_repr(*value) : "null");
  }
  void flag(const char *name, bool &value) override { put(name, value ? "true" : "false"); }
  void choice(const char *name, std::string &value, const std::vector<std::string> &) override {
    put(name, '"' + value + '"');
  }
  void token_ids(const char *name, std::vector<std::int64_t> &value) override {
    std::string all;
    for (const std::int64_t token : value) all += (all.empty() ? "" : ", ") + std::to_string(token);
    put(name, '[' + all + ']');
  }
  bool is_set(const char *, const std::optional<double> &value) override { return value.has_value(); }
  std::string text(const char *, double value) override { return python_repr(value); }

 private:
  void put(const char *name, const std::string &json) {
    members += (members.empty() ? "\"" : ", \"") + std::string(name) + "\": " + json;
  }
};

void check_override(const std::string &key, const std::set<std::string> &names,
                    const std::map<std::string, std::string> &aliases) {
  if (names.count(key) != 0 || aliases.count(key) != 0) return;
  // Callers set these, people do not.
  std::vector<std::string> shown(names.begin(), names.end());
  shown.erase(std::remove_if(shown.begin(), shown.end(),
                             [](const auto &n) { return n == "continue_prefix" || n == "logits_budget_bytes"; }),
              shown.end());
  const std::string close = closest_name(key, shown);
  std::string all;
  for (const std::string &name : shown) all += (all.empty() ? "" : ", ") + name;
  fail(EK_INVALID_ARGUMENT, key, " is not a sampling option of this model; ",
       close.empty() ? "options are: " + all : "did you mean " + close + "?");
}

}  // namespace

void check_integer(const char *name, std::int64_t value, const IntegerBounds &bounds) {
  if (!is_within(value, bounds)) bad_integer(name, std::to_string(value), bounds);
}

std::int64_t read_integer(const char *name, const Json &json, const IntegerBounds &bounds) {
  if (json.kind() != Json::Kind::integer || !is_within(json.integer(), bounds))
    bad_integer(name, python_repr(json), bounds);
  return json.integer();
}

OptionMembers members_of(const Json &object) {
  OptionMembers members;
  for (const auto &[key, value] : object.object()) members.emplace_back(key, &value);
  return members;
}

std::string options_text(const OptionList &list) {
  TextWriter writer;
  list(writer);
  return '{' + writer.members + '}';
}

void check_options(const OptionList &list) {
  Checker checker;
  list(checker);
}

std::vector<std::string> read_options(const OptionList &list, const std::map<std::string, std::string> &aliases,
                                      const char *required, const OptionMembers &config,
                                      const OptionMembers &overrides) {
  Names known;
  list(known);
  for (const auto &member : overrides) check_override(member.first, known.names, aliases);

  Reader reader;
  std::vector<std::string> ignored;
  const auto take = [&](const OptionMembers &members, bool own_names, bool nulls) {
    for (const auto &[key, value] : members) {
      if ((known.names.count(key) != 0) != own_names) continue;
      const auto alias = aliases.find(key);
      if (!own_names && alias == aliases.end()) {
        ignored.push_back(key);
      } else if (nulls || !value->is_null()) {
        reader.found[own_names ? key : alias->second] = value;
      }
    }
  };
  // An option's own name wins over an alias wherever both are given.
  take(config, false, false);
  take(config, true, false);
  take(overrides, false, true);
  take(overrides, true, true);
  if (required != nullptr && reader.found.count(required) == 0)
    fail(EK_INVALID_ARGUMENT, required, " is not set by the generation config; pass it explicitly");
  list(reader);
  std::sort(ignored.begin(), ignored.end());
  return ignored;
}

}  // namespace edgekit
