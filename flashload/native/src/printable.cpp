#include "printable.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "utf8.h"

namespace edgekit {
namespace {

struct Range {
  std::uint32_t first, last;
};

// Unicode's categories Cc, Cf, Cs, Co, Zl, Zp and Zs (without the space), and its noncharacters below plane 1; those
// of the later planes follow a rule.
constexpr Range kNotPrintable[] = {
    {0x0000, 0x001F},   {0x007F, 0x00A0},   {0x00AD, 0x00AD},   {0x0600, 0x0605},   {0x061C, 0x061C},
    {0x06DD, 0x06DD},   {0x070F, 0x070F},   {0x0890, 0x0891},   {0x08E2, 0x08E2},   {0x1680, 0x1680},
    {0x180E, 0x180E},   {0x2000, 0x200F},   {0x2028, 0x202F},   {0x205F, 0x2064},   {0x2066, 0x206F},
    {0x3000, 0x3000},   {0xD800, 0xF8FF},   {0xFDD0, 0xFDEF},   {0xFEFF, 0xFEFF},   {0xFFF9, 0xFFFB},
    {0xFFFE, 0xFFFF},   {0x110BD, 0x110BD}, {0x110CD, 0x110CD}, {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3},
    {0x1D173, 0x1D17A}, {0xE0001, 0xE0001}, {0xE0020, 0xE007F}, {0xF0000, 0x10FFFF},
};

void append_hex(std::string &out, std::uint32_t value, int digits) {
  for (int i = digits - 1; i >= 0; --i) out += "0123456789abcdef"[value >> (4 * i) & 0xF];
}

void append_escape(std::string &out, std::uint32_t value) {
  out += value <= 0xFF ? "\\x" : value <= 0xFFFF ? "\\u" : "\\U";
  append_hex(out, value, value <= 0xFF ? 2 : value <= 0xFFFF ? 4 : 8);
}

// Whether the text begins with a surrogate encoded as UTF-8 would encode a character.
bool begins_with_surrogate(std::string_view text) {
  return text.size() >= 3 && text[0] == '\xED' && (text[1] & 0xE0) == 0xA0 && (text[2] & 0xC0) == 0x80;
}

}  // namespace

bool is_printable(std::uint32_t code_point) noexcept {
  const auto *range = std::lower_bound(std::begin(kNotPrintable), std::end(kNotPrintable), code_point,
                                       [](const Range &a, std::uint32_t value) { return a.last < value; });
  if (range != std::end(kNotPrintable) && range->first <= code_point) return false;
  return (code_point & 0xFFFE) != 0xFFFE && code_point <= 0x10FFFF;
}

bool is_printable(std::string_view text) noexcept {
  for (std::size_t at = 0; at < text.size();) {
    if (!is_printable(next_code_point(text, at))) return false;
  }
  return true;
}

std::string one_line(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    std::uint32_t value = next_code_point(text, at);
    const std::size_t good = utf8_prefix(text.substr(start, at - start));
    const bool breaks = value < 0x20 || (value >= 0x7F && value < 0xA0) || value == 0x2028 || value == 0x2029;
    if (good == at - start && !breaks) {
      out.append(text.substr(start, good));
      continue;
    }
    if (good == 0 && !begins_with_surrogate(text.substr(start))) {
      value = static_cast<unsigned char>(text[start]);
      at = start + 1;
    }
    append_escape(out, value);
  }
  return out;
}

std::string shortened(std::string text) {
  constexpr std::size_t kMost = 1000, kStart = 600, kEnd = 300;
  if (text.size() <= kMost) return text;
  std::size_t start = kStart, end = text.size() - kEnd;
  const auto inside = [&text](std::size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80; };
  while (inside(start)) --start;  // no character is cut
  while (inside(end)) ++end;
  return text.substr(0, start) + " ... " + text.substr(end);
}

std::string in_quotes(std::string_view text, std::size_t limit) {
  std::string out = "'";
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) {
    if (count == limit) {
      out += "...";
      break;
    }
    const std::size_t start = at;
    const std::uint32_t value = next_code_point(text, at);
    if (value == '\'' || value == '\\') out += '\\';
    if (is_printable(value)) {
      out.append(text.substr(start, at - start));
    } else {
      append_escape(out, value);
    }
  }
  return out + "'";
}

}  // namespace edgekit
