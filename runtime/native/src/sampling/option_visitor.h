// How the samplers' option structs are read and checked: each lists its options once, in the order in which the
// Python class checks them. Messages are those of runtime/sampling/options.py.
#ifndef EDGEKIT_SAMPLING_OPTION_VISITOR_H
#define EDGEKIT_SAMPLING_OPTION_VISITOR_H

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "json.h"
#include "sampling/options.h"

namespace edgekit {

// What a number must be, besides finite.
struct Bounds {
  double minimum = 0;
  bool exclusive = false;  // above the minimum, not at it
  std::optional<double> maximum;
};

struct IntegerBounds {
  std::int64_t minimum = 0;
  std::optional<std::int64_t> maximum;
};

// Throw Error (EK_INVALID_ARGUMENT) when the value is not an integer within the bounds.
void check_integer(const char *name, std::int64_t value, const IntegerBounds &bounds);
std::int64_t read_integer(const char *name, const Json &json, const IntegerBounds &bounds);

// Members throw Error (EK_INVALID_ARGUMENT) when the value is not allowed.
class OptionVisitor {
 public:
  virtual ~OptionVisitor() = default;

  virtual void integer(const char *name, std::int64_t &value, std::int64_t minimum) = 0;
  virtual void integer(const char *name, std::optional<std::int64_t> &value, std::int64_t minimum) = 0;
  virtual void number(const char *name, double &value, const Bounds &bounds) = 0;
  virtual void number(const char *name, std::optional<double> &value, const Bounds &bounds) = 0;
  virtual void flag(const char *name, bool &value) = 0;
  virtual void choice(const char *name, std::string &value, const std::vector<std::string> &choices) = 0;
  virtual void token_ids(const char *name, std::vector<std::int64_t> &value) = 0;

  // Whether the option has a value, which may be unchecked still.
  virtual bool is_set(const char *name, const std::optional<double> &value) = 0;
  // A checked number as the caller wrote it.
  virtual std::string text(const char *name, double value) = 0;
};

// Lists the options of one struct.
using OptionList = std::function<void(OptionVisitor &)>;

// The members of an object. Throws Error (EK_MALFORMED_FILE).
OptionMembers members_of(const Json &object);

// Checks what a struct holds.
void check_options(const OptionList &list);

// What a struct holds, as a JSON object.
std::string options_text(const OptionList &list);

// Fills a struct from a generation config and overrides, which win, and checks it. What neither names keeps its
// default; a null of the config means "not set". `aliases` are other names of options, `required` is the option
// without default or null. Returns the keys of the config that say nothing to this sampler, sorted. Throws Error
// (EK_INVALID_ARGUMENT), also for an override that is no option.
std::vector<std::string> read_options(const OptionList &list, const std::map<std::string, std::string> &aliases,
                                      const char *required, const OptionMembers &config,
                                      const OptionMembers &overrides);

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_OPTION_VISITOR_H
