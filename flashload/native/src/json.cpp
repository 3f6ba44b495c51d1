#include "json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <locale>
#include <numeric>
#include <sstream>

#include "error.h"
#include "printable.h"
#include "utf8.h"

namespace edgekit {
namespace {

const char *const kKindNames[] = {"null", "a boolean", "an integer", "a number", "a string", "a list", "an object"};

bool is_digit(char letter) noexcept { return letter >= '0' && letter <= '9'; }

// The first key, in the order of the text, that an earlier member has too; null when all differ. Sorting bounds the
// time for large objects, whatever keys a file holds.
const std::string *first_duplicate(const Json::Object &members) {
  if (members.size() <= 8) {
    for (std::size_t i = 1; i < members.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (members[i].first == members[j].first) return &members[i].first;
      }
    }
    return nullptr;
  }
  std::vector<std::uint32_t> order(members.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&members](std::uint32_t a, std::uint32_t b) {
    const int compared = members[a].first.compare(members[b].first);
    return compared != 0 ? compared < 0 : a < b;
  });
  std::uint32_t found = std::numeric_limits<std::uint32_t>::max();
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (members[order[i]].first == members[order[i - 1]].first) found = std::min(found, order[i]);
  }
  return found < members.size() ? &members[found].first : nullptr;
}

}  // namespace

// Recursive descent over text that was checked to be UTF-8.
class JsonParser {
 public:
  JsonParser(std::string_view text, std::shared_ptr<const std::string> where)
      : text_(text), where_(std::move(where)) {
    number_stream_.imbue(std::locale::classic());  // the process may use a comma in numbers
  }

  void parse_document(Json &out) {
    if (text_.size() > std::numeric_limits<std::uint32_t>::max()) fail_at("the text is larger than 4 GiB");
    at_ = utf8_prefix(text_);
    if (at_ != text_.size()) fail_at("bytes that are not UTF-8");
    at_ = 0;
    skip_space();
    parse_value(out, 0);
    skip_space();
    if (at_ != text_.size()) fail_at("text after the end");
  }

 private:
  [[noreturn]] void fail_at(const char *what) const {
    const std::string_view before = text_.substr(0, at_);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const std::size_t start = before.rfind('\n') + 1;  // npos + 1 is 0
    const std::size_t column = before.size() - start + 1;
    fail(EK_MALFORMED_FILE, *where_, ": not valid JSON (", what, ": line ", line, ", byte ", column,
         "); export or download the file again");
  }

  char peek() const noexcept { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool accept(char letter) noexcept {
    if (at_ >= text_.size() || text_[at_] != letter) return false;
    ++at_;
    return true;
  }

  void skip_space() noexcept {
    for (; at_ < text_.size(); ++at_) {
      const char letter = text_[at_];
      if (letter == '\n') {
        ++line_;  // a line can end nowhere else: strings hold no control characters
      } else if (letter != ' ' && letter != '\t' && letter != '\r') {
        return;
      }
    }
  }

  void parse_value(Json &out, int depth) {
    out.where_ = where_;
    out.line_ = line_;
    switch (peek()) {
      case '{':
        return parse_object(out, depth + 1);
      case '[':
        return parse_array(out, depth + 1);
      case '"':
        ++at_;
        return parse_string(out.value_.emplace<std::string>());
      case 't':
        expect_word("true");
        out.value_ = true;
        return;
      case 'f':
        expect_word("false");
        out.value_ = false;
        return;
      case 'n':
        return expect_word("null");
      case 'N':
        expect_word("NaN");
        not_a_number("NaN");
      case 'I':
        expect_word("Infinity");
        not_a_number("Infinity");
      default:
        return parse_number(out);
    }
  }

  void expect_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) fail_at("a value is expected");
    at_ += word.size();
  }

  [[noreturn]] void not_a_number(const char *word) const {
    fail(EK_MALFORMED_FILE, *where_, ": ", word, " is not a JSON number; export the file again");
  }

  void enter(int depth) const {
    if (depth > Json::kMaxDepth) fail(EK_MALFORMED_FILE, *where_, ": nested too deeply to be one of our files");
  }

  void parse_array(Json &out, int depth) {
    enter(depth);
    ++at_;
    auto &items = out.value_.emplace<Json::Array>();
    skip_space();
    if (accept(']')) return;
    do {
      skip_space();
      parse_value(items.emplace_back(), depth);
      skip_space();
    } while (accept(','));
    if (!accept(']')) fail_at("a comma or the end of a list is expected");
  }

  void parse_object(Json &out, int depth) {
    enter(depth);
    ++at_;
    auto &members = out.value_.emplace<Json::Object>();
    skip_space();
    if (accept('}')) return;
    do {
      skip_space();
      if (!accept('"')) fail_at("a name in double quotes is expected");
      auto &member = members.emplace_back();
      parse_string(member.first);
      skip_space();
      if (!accept(':')) fail_at("a colon is expected");
      skip_space();
      parse_value(member.second, depth);
      skip_space();
    } while (accept(','));
    if (!accept('}')) fail_at("a comma or the end of an object is expected");
    if (const std::string *name = first_duplicate(members)) {
      fail(EK_MALFORMED_FILE, *where_, ": the name ", in_quotes(*name), " appears twice; export the file again");
    }
  }

  // After the opening quote.
  void parse_string(std::string &out) {
    while (true) {
      const std::size_t start = at_;
      while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
             static_cast<unsigned char>(text_[at_]) >= 0x20) {
        ++at_;
      }
      out.append(text_.substr(start, at_ - start));
      if (at_ == text_.size()) fail_at("a string without an end");
      if (accept('"')) return;
      if (!accept('\\')) fail_at("a control character in a string");
      parse_escape(out);
    }
  }

  void parse_escape(std::string &out) {
    switch (peek()) {
      case '"':
      case '\\':
      case '/':
        out += text_[at_];
        break;
      case 'b':
        out += '\b';
        break;
      case 'f':
        out += '\f';
        break;
      case 'n':
        out += '\n';
        break;
      case 'r':
        out += '\r';
        break;
      case 't':
        out += '\t';
        break;
      case 'u': {
        ++at_;
        std::uint32_t value = parse_hex();
        if (value >= 0xD800 && value < 0xDC00 && text_.substr(at_, 2) == "\\u") {
          const std::size_t second_at = at_;
          at_ += 2;
          const std::uint32_t second = parse_hex();
          if (second >= 0xDC00 && second < 0xE000) {
            value = 0x10000 + ((value - 0xD800) << 10 | (second - 0xDC00));
          } else {
            at_ = second_at;  // an escape of its own
          }
        }
        append_utf8(out, value);
        return;
      }
      default:
        fail_at("an unknown escape in a string");
    }
    ++at_;
  }

  std::uint32_t parse_hex() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char letter = peek();
      std::uint32_t digit;
      if (is_digit(letter)) {
        digit = static_cast<std::uint32_t>(letter - '0');
      } else if (letter >= 'a' && letter <= 'f') {
        digit = static_cast<std::uint32_t>(letter - 'a') + 10;
      } else if (letter >= 'A' && letter <= 'F') {
        digit = static_cast<std::uint32_t>(letter - 'A') + 10;
      } else {
        fail_at("a \\u escape without four hex digits");
      }
      value = value << 4 | digit;
    }
    return value;
  }

  void skip_digits() noexcept {
    while (is_digit(peek())) ++at_;
  }

  void parse_number(Json &out) {
    const std::size_t start = at_;
    const bool negative = accept('-');
    if (negative && peek() == 'I') {
      expect_word("Infinity");
      not_a_number("-Infinity");
    }
    const std::size_t first_digit = at_;
    if (!is_digit(peek())) fail_at("a value is expected");
    if (!accept('0')) skip_digits();
    const std::size_t digits = at_ - first_digit;
    bool whole = true;
    if (peek() == '.') {
      ++at_;
      if (!is_digit(peek())) fail_at("a digit is expected after the point");
      skip_digits();
      whole = false;
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      if (!is_digit(peek())) fail_at("a digit is expected in the exponent");
      skip_digits();
      whole = false;
    }
    if (whole && digits > static_cast<std::size_t>(Json::kMaxIntegerDigits)) {
      fail_at("an integer with too many digits");
    }
    if (whole && fits_integer(text_.substr(first_digit, digits), negative, out)) return;
    out.value_ = to_double(text_.substr(start, at_ - start));
  }

  static bool fits_integer(std::string_view digits, bool negative, Json &out) {
    if (digits.size() > 19) return false;
    std::uint64_t value = 0;  // 19 digits cannot overflow it
    for (const char digit : digits) value = value * 10 + static_cast<std::uint64_t>(digit - '0');
    const std::uint64_t most = std::uint64_t{1} << 63;
    if (value > most || (value == most && !negative)) return false;
    // Negated as unsigned: the smallest integer has no positive counterpart.
    out.value_ = static_cast<std::int64_t>(negative ? 0 - value : value);
    return true;
  }

  double to_double(std::string_view text) {
    number_stream_.clear();
    number_stream_.str(std::string(text));
    double value = 0;
    number_stream_ >> value;
    // Out of range: libstdc++ gives the largest double, libc++ infinity; both set the flag.
    if (number_stream_.fail() && std::fabs(value) >= std::numeric_limits<double>::max()) {
      return std::copysign(std::numeric_limits<double>::infinity(), value);
    }
    return value;
  }

  std::string_view text_;
  std::shared_ptr<const std::string> where_;
  std::istringstream number_stream_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
};

Json Json::parse(std::string_view text, const std::string &where) {
  // Before anything is made of it; strings are looked at too, which nobody fills with these.
  const auto is_mark = [](char c) { return c == ',' || c == ':' || c == '{' || c == '['; };
  if (static_cast<std::size_t>(std::count_if(text.begin(), text.end(), is_mark)) > kMaxMarks) {
    fail(EK_MALFORMED_FILE, where, ": has more values than any of our files (over ", kMaxMarks, " marks of JSON)");
  }
  Json out;
  JsonParser(text, std::make_shared<const std::string>(where)).parse_document(out);
  return out;
}

const std::string &Json::where() const noexcept {
  static const std::string kNowhere = "JSON";
  return where_ ? *where_ : kNowhere;
}

void Json::wrong(const char *wanted) const {
  fail(EK_MALFORMED_FILE, where(), ": expected ", wanted, " in line ", line_, ", found ", kKindNames[value_.index()],
       "; export it again");
}

template <typename Wanted>
const Wanted &Json::get(const char *wanted) const {
  const Wanted *value = std::get_if<Wanted>(&value_);
  if (value == nullptr) wrong(wanted);
  return *value;
}

bool Json::boolean() const { return get<bool>("a boolean"); }

std::int64_t Json::integer() const { return get<std::int64_t>("an integer of 64 bits"); }

double Json::number() const {
  if (const auto *whole = std::get_if<std::int64_t>(&value_)) return static_cast<double>(*whole);
  const double value = get<double>("a number");
  if (!std::isfinite(value)) {
    fail(EK_MALFORMED_FILE, where(), ": the number in line ", line_, " is too large; export it again");
  }
  return value;
}

const std::string &Json::string() const { return get<std::string>("a string"); }

const Json::Array &Json::array() const { return get<Array>("a list"); }

const Json::Object &Json::object() const { return get<Object>("an object"); }

const Json &Json::at(std::string_view key) const {
  const Json *found = find(key);
  if (found == nullptr) {
    fail(EK_MALFORMED_FILE, where(), ": ", in_quotes(key), " is missing from the object in line ", line_,
         "; export it again");
  }
  return *found;
}

const Json *Json::find(std::string_view key) const {
  for (const auto &member : object()) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

}  // namespace edgekit
