#include "sampling/option_fields.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <type_traits>

#include "error.h"
#include "printable.h"
#include "sampling/json_text.h"

namespace edgekit {
namespace {

template <typename Value>
struct IsOptional : std::false_type {};
template <typename Value>
struct IsOptional<std::optional<Value>> : std::true_type {};

template <typename Pointer>
using Target = std::remove_pointer_t<Pointer>;

bool is_optional(const OptionField &field) {
  return std::visit([](auto *value) { return IsOptional<Target<decltype(value)>>::value; }, field.value);
}

bool is_within(double value, const OptionField &field) {
  return std::isfinite(value) &&
         (!field.minimum || (field.above_minimum ? value > *field.minimum : value >= *field.minimum)) &&
         (!field.maximum || value <= *field.maximum);
}

// "use a number above 0 to 1"
[[noreturn]] void refuse_number(const OptionField &field, const std::string &found, const char *kind) {
  std::ostringstream limits;
  limits.precision(15);
  const char *least = field.above_minimum ? " above " : field.maximum ? " from " : " of at least ";
  if (field.minimum) limits << least << *field.minimum;
  if (field.maximum) limits << (field.minimum ? " to " : " of at most ") << *field.maximum;
  fail(EK_INVALID_ARGUMENT, field.name, " is ", found, "; use ", kind, limits.str());
}

void check(const OptionField &field, std::int64_t value) {
  if (!is_within(static_cast<double>(value), field)) refuse_number(field, std::to_string(value), "an integer");
}

void check(const OptionField &field, double value) {
  if (!is_within(value, field)) refuse_number(field, json_text(value), "a number");
}

void check(const OptionField &, bool) {}

void check(const OptionField &field, const std::string &value) {
  if (std::find(field.choices.begin(), field.choices.end(), value) == field.choices.end())
    fail(EK_INVALID_ARGUMENT, field.name, " is ", in_quotes(value), "; use one of: ", joined(field.choices));
}

void check(const OptionField &field, const std::vector<std::int64_t> &value) {
  for (const std::int64_t token : value) check(field, token);
}

template <typename Value>
void check(const OptionField &field, const std::optional<Value> &value) {
  if (value) check(field, *value);
}

// Take a value from JSON.

void take(const OptionField &field, const Json &json, std::int64_t &value) {
  if (json.kind() != Json::Kind::integer) refuse_number(field, shown(json), "an integer");
  value = json.integer();
}

void take(const OptionField &field, const Json &json, double &value) {
  if (json.kind() != Json::Kind::integer && json.kind() != Json::Kind::number)
    refuse_number(field, shown(json), "a number");
  value = json.number();
}

void take(const OptionField &field, const Json &json, bool &value) {
  if (json.kind() != Json::Kind::boolean)
    fail(EK_INVALID_ARGUMENT, field.name, " is ", shown(json), "; use true or false");
  value = json.boolean();
}

void take(const OptionField &field, const Json &json, std::string &value) {
  if (json.kind() != Json::Kind::string)
    fail(EK_INVALID_ARGUMENT, field.name, " is ", shown(json), "; use one of: ", joined(field.choices));
  value = json.string();
}

void take(const OptionField &field, const Json &json, std::vector<std::int64_t> &value) {
  value.clear();
  if (json.kind() == Json::Kind::integer) return take(field, json, value.emplace_back());
  if (json.kind() != Json::Kind::array) fail(EK_INVALID_ARGUMENT, field.name, " is ", shown(json), "; use a list of integers");
  for (const Json &token : json.array()) take(field, token, value.emplace_back());
}

template <typename Value>
void take(const OptionField &field, const Json &json, std::optional<Value> &value) {
  value.reset();
  if (!json.is_null()) take(field, json, value.emplace());
}

std::string value_text(std::int64_t value) { return std::to_string(value); }
std::string value_text(double value) { return json_text(value); }
std::string value_text(bool value) { return value ? "true" : "false"; }
std::string value_text(const std::string &value) { return json_text(std::string_view(value)); }
std::string value_text(const std::vector<std::int64_t> &value) {
  std::vector<std::string> all;
  for (const std::int64_t token : value) all.push_back(std::to_string(token));
  return '[' + joined(all) + ']';
}
template <typename Value>
std::string value_text(const std::optional<Value> &value) {
  return value ? value_text(*value) : "null";
}

const char *type_of(const OptionField &field) {
  static const char *const kTypes[] = {"int", "int", "float", "float", "bool", "str", "ids"};  // in the variant's order
  return kTypes[field.value.index()];
}

std::string member(const char *name, const std::string &json) { return '"' + std::string(name) + "\": " + json; }

std::string words(const std::vector<const char *> &all) {
  std::vector<std::string> quoted;
  for (const char *word : all) quoted.push_back(json_text(std::string_view(word)));
  return '[' + joined(quoted) + ']';
}

bool is_named(const OptionField &field, const std::string &name) {
  return field.name == name || std::count(field.aliases.begin(), field.aliases.end(), name) != 0;
}

[[noreturn]] void unknown(const OptionFields &fields, const std::string &name) {
  std::vector<const char *> known;
  for (const OptionField &field : fields) {
    if (!field.internal) known.push_back(field.name);
  }
  // Any text can be a name: quotes show where it begins and ends.
  constexpr const char *kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  const bool is_word = !name.empty() && name.size() <= 80 && name.find_first_not_of(kLetters) == std::string::npos;
  fail(EK_INVALID_ARGUMENT, is_word ? name : in_quotes(name),
       " is not a sampling option of this model; options are: ", joined(known));
}

// Messages name what was given.
void give(OptionField field, const std::string &as, const Json &json) {
  field.name = as.c_str();
  std::visit([&](auto *value) { take(field, json, *value), check(field, *value); }, field.value);
}

}  // namespace

std::string value_text(const OptionField &field) {
  return std::visit([](auto *value) { return value_text(*value); }, field.value);
}

const OptionField *find_field(const OptionFields &fields, const std::string &name) {
  const auto found =
      std::find_if(fields.begin(), fields.end(), [&](const OptionField &field) { return is_named(field, name); });
  return found == fields.end() ? nullptr : &*found;
}

OptionMembers members_of(const Json &object) {
  OptionMembers members;
  for (const auto &[key, value] : object.object()) members.emplace_back(key, &value);
  return members;
}

Given read_fields(const OptionFields &fields, const OptionMembers &config, const OptionMembers &wishes) {
  Given given;
  std::map<std::string, std::pair<std::string, const Json *>> wished;  // by the option's own name: as which, and what
  for (const auto &[name, value] : wishes) {
    const OptionField *field = find_field(fields, name);
    if (field == nullptr) unknown(fields, name);
    if (value->is_null() && !is_optional(*field)) continue;
    const auto [at, added] = wished.emplace(field->name, std::make_pair(name, value));
    if (!added)
      fail(EK_INVALID_ARGUMENT, field->name, " is given twice, as ", at->second.first, " and as ", name,
           "; leave one out");
  }
  for (const OptionField &field : fields) {
    std::pair<std::string, const Json *> chosen;  // as which, and what
    for (const auto &[name, value] : config) {
      // An option's own name wins over its aliases.
      const bool own = name == field.name;
      if (!value->is_null() && (own || (chosen.second == nullptr && is_named(field, name))))
        chosen = {name, value};
    }
    if (chosen.second != nullptr) given.by_config.insert(field.name);
    const auto wish = wished.find(field.name);
    if (wish != wished.end()) {
      given.by_wishes.insert(field.name);
      chosen = wish->second;
    }
    if (chosen.second != nullptr) give(field, chosen.first, *chosen.second);
    if (chosen.second == nullptr && field.required)
      fail(EK_INVALID_ARGUMENT, field.name, " is not set by the generation config; pass it explicitly");
  }
  return given;
}

void check_fields(const OptionFields &fields) {
  for (const OptionField &field : fields) {
    std::visit([&](auto *value) { check(field, *value); }, field.value);
  }
}

void check_tokens(const OptionFields &fields, std::int64_t vocabulary) {
  const auto check = [&](const OptionField &field, std::int64_t token) {
    if (token >= vocabulary)
      fail(EK_INVALID_ARGUMENT, field.name, " ", token, " is outside the model's vocabulary of ", vocabulary, " tokens");
  };
  for (const OptionField &field : fields) {
    if (!field.tokens) continue;
    if (const auto *one = std::get_if<std::int64_t *>(&field.value)) check(field, **one);
    if (const auto *maybe = std::get_if<std::optional<std::int64_t> *>(&field.value); maybe && **maybe)
      check(field, ***maybe);
    if (const auto *several = std::get_if<std::vector<std::int64_t> *>(&field.value)) {
      for (const std::int64_t token : **several) check(field, token);
    }
  }
}

std::string text_of(const OptionFields &fields) {
  std::vector<std::string> members;
  for (const OptionField &field : fields) members.push_back(member(field.name, value_text(field)));
  return '{' + joined(members) + '}';
}

std::string description_of(const OptionFields &fields, std::int64_t vocabulary) {
  std::vector<std::string> all;
  for (const OptionField &field : fields) {
    std::optional<double> most = field.maximum;
    if (field.tokens) most = static_cast<double>(vocabulary - 1);
    const std::vector<std::string> members = {
        member("name", json_text(std::string_view(field.name))),
        member("aliases", words(field.aliases)),
        member("type", json_text(std::string_view(type_of(field)))),
        member("value", value_text(field)),
        member("minimum", value_text(field.minimum)),
        member("maximum", value_text(most)),
        member("above_minimum", value_text(field.above_minimum)),
        member("choices", words(field.choices)),
        member("optional", value_text(is_optional(field))),
        member("internal", value_text(field.internal)),
        member("help", json_text(std::string_view(field.help))),
    };
    all.push_back('{' + joined(members) + '}');
  }
  return '[' + joined(all) + ']';
}

}  // namespace edgekit
