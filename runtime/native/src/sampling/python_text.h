// Values as Python writes them, and its guess of what a misspelt name meant: both engines give the same messages.
#ifndef EDGEKIT_SAMPLING_PYTHON_TEXT_H
#define EDGEKIT_SAMPLING_PYTHON_TEXT_H

#include <string>
#include <string_view>
#include <vector>

#include "json.h"

namespace edgekit {

// repr() of a float: the shortest digits that give it back.
std::string python_repr(double value);

// repr() of what json.loads makes of the value.
std::string python_repr(const Json &value);

// The name that `word` was probably meant to be, or two that are equally near, as `nearest` of flashload/names.py; empty
// if none is near. Of `word` only the letters A-Z are taken as small ones; the names are small.
std::string closest_name(std::string_view word, const std::vector<std::string> &names);

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_PYTHON_TEXT_H
