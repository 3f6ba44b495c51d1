// An option of a sampler, declared once: its name, type, range and help. Reading, checking and listing go by it.
#ifndef EDGEKIT_SAMPLING_OPTION_FIELDS_H
#define EDGEKIT_SAMPLING_OPTION_FIELDS_H

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "json.h"

namespace edgekit {

// Members of a generation config or of the caller's wishes; the values belong to others.
using OptionMembers = std::vector<std::pair<std::string, const Json *>>;

// Where an option's value is; an optional one may be null, which switches it off.
using OptionValue = std::variant<std::int64_t *, std::optional<std::int64_t> *, double *, std::optional<double> *, bool *,
                                 std::string *, std::vector<std::int64_t> *>;

struct OptionField {
  const char *name;
  OptionValue value;
  const char *help;
  std::optional<double> minimum, maximum;  // of numbers, which must be finite anyway
  bool above_minimum = false;              // the minimum itself is too small
  bool tokens = false;                     // ids of the vocabulary
  bool required = false;                   // has no default
  bool internal = false;                   // set by callers, not by people
  std::vector<const char *> choices;
  std::vector<const char *> aliases;  // other names, those of checkpoints and published scripts

  OptionField(const char *name, OptionValue value, const char *help) : name(name), value(value), help(help) {}

  OptionField at_least(double least) { return minimum = least, *this; }
  OptionField above(double bound) { return above_minimum = true, at_least(bound); }
  OptionField at_most(double most) { return maximum = most, *this; }
  OptionField one_of(std::vector<const char *> words) { return choices = std::move(words), *this; }
  OptionField token() { return tokens = true, at_least(0); }
  OptionField also(std::vector<const char *> names) { return aliases = std::move(names), *this; }
  OptionField needed() { return required = true, *this; }
  OptionField hidden() { return internal = true, *this; }
};

using OptionFields = std::vector<OptionField>;

// The members of an object. Throws Error (EK_MALFORMED_FILE).
OptionMembers members_of(const Json &object);

// Names of options that have been given a value.
struct Given {
  std::set<std::string> by_config, by_wishes;

  bool has(const char *name) const { return by_config.count(name) != 0 || by_wishes.count(name) != 0; }
};

// Fills options from a generation config and the caller's wishes, which win. A null is "not set", but in the wishes for
// an optional one, which it switches off. Keys of the config that say nothing to this sampler are left alone. Throws
// Error (EK_INVALID_ARGUMENT) for a value that is not allowed, a wish that is no option or names one twice, and a required
// option without a value.
Given read_fields(const OptionFields &fields, const OptionMembers &config, const OptionMembers &wishes);

// Options that change nothing beside the others, and why.
using UnusedOptions = std::vector<std::pair<const char *, std::string>>;

// The option of this name, or alias, or null.
const OptionField *find_field(const OptionFields &fields, const std::string &name);
// Its value as JSON.
std::string value_text(const OptionField &field);

// Throw Error (EK_INVALID_ARGUMENT) unless all values are allowed, and all token ids are of the vocabulary.
void check_fields(const OptionFields &fields);
void check_tokens(const OptionFields &fields, std::int64_t vocabulary);

// The values as a JSON object, which read_fields takes as wishes.
std::string text_of(const OptionFields &fields);

// A JSON array: each option with its name, type ("int", "float", "bool", "str", "ids"), value, range and help.
std::string description_of(const OptionFields &fields, std::int64_t vocabulary);

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_OPTION_FIELDS_H
