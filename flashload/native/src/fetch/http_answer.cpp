#include "fetch/http_answer.h"

#include "printable.h"

namespace edgekit {
namespace {

// Digits at the start of `text`, which loses them; false where there are none, or too many for a file.
bool take_number(std::string_view &text, std::uint64_t &number) {
  constexpr std::size_t kMostDigits = 18;
  std::size_t digits = 0;
  number = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') {
    if (digits == kMostDigits) return false;
    number = number * 10 + static_cast<std::uint64_t>(text[digits++] - '0');
  }
  text.remove_prefix(digits);
  return digits > 0;
}

bool take_letter(std::string_view &text, char letter) {
  if (text.empty() || text.front() != letter) return false;
  text.remove_prefix(1);
  return true;
}

bool take_unit(std::string_view &text) {
  constexpr std::string_view kUnit = "bytes ";
  for (const char letter : kUnit) {
    const char found = text.empty() ? '\0' : text.front();
    if (found != letter && !(found >= 'A' && found <= 'Z' && found + ('a' - 'A') == letter)) return false;
    text.remove_prefix(1);
  }
  return true;
}

// "bytes 0-99/1000", whose last number may be an asterisk. The range and the size may contradict each other.
bool parse_content_range(std::string_view text, ByteRange &range, std::uint64_t &size, bool &size_known) {
  std::uint64_t last = 0;
  if (!take_unit(text) || !take_number(text, range.begin) || !take_letter(text, '-') || !take_number(text, last) ||
      !take_letter(text, '/')) {
    return false;
  }
  size_known = !take_letter(text, '*');
  if (size_known && !take_number(text, size)) return false;
  range.end = last + 1;
  return text.empty();
}

HttpAnswerFound later(const std::string &why) { return {HttpAnswer::later, why}; }

std::string shown(ByteRange range) { return std::to_string(range.begin) + "-" + std::to_string(range.end - 1); }

HttpAnswerFound read_part(std::string_view content_range, ByteRange asked, std::uint64_t size) {
  if (asked.empty()) return later("answered with a part of a file that was asked for as a whole");
  ByteRange given;
  std::uint64_t given_size = 0;
  bool size_known = false;
  const bool is_read = parse_content_range(content_range, given, given_size, size_known);
  // Before the range, which a file of another size cannot give either.
  if (is_read && size_known && size != 0 && given_size != size) {
    return {HttpAnswer::other, "has " + std::to_string(given_size) + " bytes, and not " + std::to_string(size) + ","};
  }
  if (!is_read || given.begin >= given.end || (size_known && given.end > given_size)) {
    return later("answered with a part, and Content-Range " + in_quotes(content_range));
  }
  if (given.begin != asked.begin) {  // more than was asked for does no harm
    return later("was asked for bytes " + shown(asked) + " and answered with " + shown(given));
  }
  return {HttpAnswer::part, ""};
}

}  // namespace

HttpAnswerFound read_http_answer(int status, std::string_view content_range, ByteRange asked, std::uint64_t size) {
  const std::string code = "HTTP status " + std::to_string(status);
  switch (status) {
    case 200:
      return {HttpAnswer::whole, ""};
    case 206:
      return read_part(content_range, asked, size);
    case 404:
    case 410:
      return {HttpAnswer::missing, "has no such file (" + code + ")"};
    case 401:
    case 403:
    case 407:
    case 451:
      return {HttpAnswer::never, "does not allow it (" + code + ")"};
    case 416:
      if (asked.empty()) break;
      return {HttpAnswer::other, "has no bytes " + shown(asked) + " (" + code + ")"};
    default:
      break;
  }
  if (status >= 300 && status < 400) return {HttpAnswer::never, "leads in a circle, or to what is no address (" + code + ")"};
  if (status >= 500 || status == 408 || status == 425 || status == 429) return later("is not ready (" + code + ")");
  return {HttpAnswer::never, "answered with " + code};
}

}  // namespace edgekit
