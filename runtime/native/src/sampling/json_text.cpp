#include "sampling/json_text.h"

#include <charconv>
#include <cmath>
#include <vector>

#include "printable.h"

namespace edgekit {
namespace {

// Lists and objects in messages: more items than these say nothing more.
constexpr std::size_t kMostItems = 8;

// 4.0 is not the integer 4. Integers of more than 64 bits are numbers too.
std::string number_text(double value) {
  const std::string text = json_text(value);
  const bool whole = text.find_first_not_of("-0123456789") == std::string::npos;
  return whole && std::fabs(value) < 0x1p63 ? text + ".0" : text;
}

std::string item(const std::string &key, const Json &value) { return in_quotes(key) + ": " + shown(value); }

template <typename Items, typename Text>
std::string listed(const Items &items, Text text) {
  std::vector<std::string> all;
  for (const auto &one : items) {
    if (all.size() == kMostItems) {
      all.emplace_back("...");
      break;
    }
    all.push_back(text(one));
  }
  return shortened(joined(all));
}

}  // namespace

std::string json_text(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "NaN" : value < 0 ? "-Infinity" : "Infinity";
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

std::string json_text(std::string_view value) {
  constexpr const char *kDigits = "0123456789abcdef";
  std::string out = "\"";
  for (const char letter : value) {
    if (static_cast<unsigned char>(letter) < 0x20) {
      out += "\\u00";
      out += kDigits[letter >> 4];
      out += kDigits[letter & 0xF];
      continue;
    }
    if (letter == '"' || letter == '\\') out += '\\';
    out += letter;
  }
  return out + '"';
}

std::string shown(const Json &value) {
  switch (value.kind()) {
    case Json::Kind::null:
      return "null";
    case Json::Kind::boolean:
      return value.boolean() ? "true" : "false";
    case Json::Kind::integer:
      return std::to_string(value.integer());
    case Json::Kind::number:
      return number_text(value.number());
    case Json::Kind::string:
      return in_quotes(value.string());
    case Json::Kind::array:
      return '[' + listed(value.array(), [](const Json &one) { return shown(one); }) + ']';
    case Json::Kind::object:
      return '{' + listed(value.object(), [](const auto &one) { return item(one.first, one.second); }) + '}';
  }
  return {};
}

}  // namespace edgekit
