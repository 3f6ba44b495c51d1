#include "sampling/python_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "printable.h"

namespace edgekit {
namespace {

// Code points of text that Json decoded.
std::u32string decode(std::string_view text) {
  std::u32string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at++]);
    const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
    std::uint32_t value = more == 0 ? lead : lead & (0x3Fu >> more);
    for (int i = 0; i < more && at < text.size(); ++i)
      value = value << 6 | (static_cast<unsigned char>(text[at++]) & 0x3Fu);
    out += static_cast<char32_t>(value);
  }
  return out;
}

// repr() of a string. What cannot be printed becomes an escape.
std::string repr_of_string(std::string_view text) {
  const bool double_quotes = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = double_quotes ? '"' : '\'';
  std::string out(1, quote);
  std::size_t at = 0;
  for (const char32_t letter : decode(text)) {
    const std::size_t start = at;
    at += letter < 0x80 ? 1 : letter < 0x800 ? 2 : letter < 0x10000 ? 3 : 4;
    if (letter == static_cast<unsigned char>(quote) || letter == '\\') {
      out += '\\';
      out += static_cast<char>(letter);
    } else if (letter == '\n') {
      out += "\\n";
    } else if (letter == '\r') {
      out += "\\r";
    } else if (letter == '\t') {
      out += "\\t";
    } else if (is_printable(static_cast<std::uint32_t>(letter))) {
      out.append(text.substr(start, at - start));
    } else {
      const int digits = letter <= 0xFF ? 2 : letter <= 0xFFFF ? 4 : 8;
      out += digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
      for (int i = digits - 1; i >= 0; --i) out += "0123456789abcdef"[letter >> (4 * i) & 0xF];
    }
  }
  return out + quote;
}

// The sum of difflib's matching blocks of a[a_begin, a_end) and b[b_begin, b_end): the longest common stretch, the
// first in a, then in b, and what matches before and after it.
std::size_t matching(const std::u32string &a, std::size_t a_begin, std::size_t a_end, const std::u32string &b,
                     std::size_t b_begin, std::size_t b_end) {
  std::size_t best = 0, best_a = a_begin, best_b = b_begin;
  std::vector<std::size_t> lengths(b_end - b_begin + 1, 0);  // of the stretches that end at each place of b
  for (std::size_t i = a_begin; i < a_end; ++i) {
    std::size_t diagonal = 0;
    for (std::size_t j = b_begin; j < b_end; ++j) {
      const std::size_t above = lengths[j - b_begin + 1];
      const std::size_t length = a[i] == b[j] ? diagonal + 1 : 0;
      lengths[j - b_begin + 1] = length;
      diagonal = above;
      if (length > best) {
        best = length;
        best_a = i + 1 - length;
        best_b = j + 1 - length;
      }
    }
  }
  if (best == 0) return 0;
  return matching(a, a_begin, best_a, b, b_begin, best_b) + best +
         matching(a, best_a + best, a_end, b, best_b + best, b_end);
}

// As in flashload/names.py.
constexpr std::size_t kMostCompared = 200;
constexpr double kNear = 0.6;

}  // namespace

std::string python_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  // The fewest digits that give the number back, and of those the nearest to it.
  char buffer[32];
  const std::to_chars_result end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string text(buffer, end.ptr);
  // -d.ddde+xx
  const std::size_t mark = text.find('e');
  const int exponent = std::atoi(text.c_str() + mark + 1);
  const std::string sign = text[0] == '-' ? "-" : "";
  std::string digits;
  for (const char letter : text.substr(0, mark)) {
    if (letter >= '0' && letter <= '9') digits += letter;
  }
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    if (count > 1) digits.insert(1, ".");
    const std::string power = std::to_string(std::abs(exponent));
    return sign + digits + (exponent < 0 ? "e-" : "e+") + (power.size() < 2 ? "0" : "") + power;
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) {
    digits.append(static_cast<std::size_t>(exponent + 1 - count), '0');
    return sign + digits + ".0";
  }
  return sign + digits.insert(static_cast<std::size_t>(exponent + 1), ".");
}

std::string python_repr(const Json &value) {
  switch (value.kind()) {
    case Json::Kind::null:
      return "None";
    case Json::Kind::boolean:
      return value.boolean() ? "True" : "False";
    case Json::Kind::integer:
      return std::to_string(value.integer());
    case Json::Kind::number:
      return python_repr(value.number());
    case Json::Kind::string:
      return repr_of_string(value.string());
    case Json::Kind::array: {
      std::string out = "[";
      for (const Json &item : value.array()) out += (out.size() > 1 ? ", " : "") + python_repr(item);
      return out + "]";
    }
    case Json::Kind::object: {
      std::string out = "{";
      for (const auto &[key, item] : value.object())
        out += (out.size() > 1 ? ", " : "") + repr_of_string(key) + ": " + python_repr(item);
      return out + "}";
    }
  }
  return {};
}

std::string closest_name(std::string_view word, const std::vector<std::string> &names) {
  std::u32string wanted = decode(word);
  for (char32_t &letter : wanted) {
    if (letter >= U'A' && letter <= U'Z') letter += U'a' - U'A';
  }
  if (wanted.size() > kMostCompared) wanted.resize(kMostCompared);
  double best = 0;
  std::vector<std::string> close;
  for (const std::string &name : names) {
    const std::u32string own = decode(name);
    const double matches = static_cast<double>(matching(wanted, 0, wanted.size(), own, 0, own.size()));
    const double ratio = 2.0 * matches / static_cast<double>(own.size() + wanted.size());
    if (ratio < kNear || ratio < best) continue;
    if (ratio > best) close.clear();
    best = ratio;
    close.push_back(name);
  }
  if (close.empty() || close.size() > 2) return "";
  return close.size() == 2 ? close[0] + " or " + close[1] : close[0];
}

}  // namespace edgekit
