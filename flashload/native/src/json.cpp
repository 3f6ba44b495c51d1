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

bool fits_integer(std::string_view digits, bool negative, std::int64_t &out) {
  if (digits.size() > 19) return false;
  std::uint64_t value = 0;  // 19 digits cannot overflow it
  for (const char digit : digits) value = value * 10 + static_cast<std::uint64_t>(digit - '0');
  const std::uint64_t most = std::uint64_t{1} << 63;
  if (value > most || (value == most && !negative)) return false;
  // Negated as unsigned: the smallest integer has no positive counterpart.
  out = static_cast<std::int64_t>(negative ? 0 - value : value);
  return true;
}

}  // namespace

JsonCursor::JsonCursor(std::string_view text, const std::string &where)
    : text_(text), where_(std::make_shared<const std::string>(where)) {
  if (text_.size() > std::numeric_limits<std::uint32_t>::max()) wrong("the text is larger than 4 GiB");
  at_ = utf8_prefix(text_);
  if (at_ != text_.size()) wrong("bytes that are not UTF-8");
  at_ = 0;
  skip_space();
}

void JsonCursor::wrong(const char *what) const {
  const std::string_view before = text_.substr(0, at_);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t start = before.rfind('\n') + 1;  // npos + 1 is 0
  const std::size_t column = before.size() - start + 1;
  fail(EK_MALFORMED_FILE, *where_, ": not valid JSON (", what, ": line ", line, ", byte ", column,
       "); export or download the file again");
}

bool JsonCursor::accept(char letter) noexcept {
  if (at_ >= text_.size() || text_[at_] != letter) return false;
  ++at_;
  return true;
}

void JsonCursor::skip_space() noexcept {
  for (; at_ < text_.size(); ++at_) {
    const char letter = text_[at_];
    if (letter == '\n') {
      ++line_;  // a line can end nowhere else: strings hold no control characters
    } else if (letter != ' ' && letter != '\t' && letter != '\r') {
      return;
    }
  }
}

void JsonCursor::enter_object() {
  if (!accept('{')) wrong("an object is expected");
  begun_.push_back(false);
}

void JsonCursor::enter_array() {
  if (!accept('[')) wrong("a list is expected");
  begun_.push_back(false);
}

bool JsonCursor::next(char closing, const char *expected) {
  skip_space();
  if (!begun_.back()) {
    begun_.back() = true;
    if (!accept(closing)) return true;
  } else if (accept(',')) {
    skip_space();
    return true;
  } else if (!accept(closing)) {
    wrong(expected);
  }
  begun_.pop_back();
  return false;
}

bool JsonCursor::next_member(std::string &name) {
  if (!next('}', "a comma or the end of an object is expected")) return false;
  if (!accept('"')) wrong("a name in double quotes is expected");
  name.clear();
  read_text(name);
  skip_space();
  if (!accept(':')) wrong("a colon is expected");
  skip_space();
  return true;
}

bool JsonCursor::next_item() { return next(']', "a comma or the end of a list is expected"); }

void JsonCursor::read_string(std::string &out) {
  if (!accept('"')) wrong("a string is expected");
  out.clear();
  read_text(out);
}

std::int64_t JsonCursor::read_integer() {
  Json value;
  if (peek() != '-' && !is_digit(peek())) wrong("an integer is expected");
  read_number(value);
  if (value.kind() != Json::Kind::integer) wrong("an integer of 64 bits is expected");
  return value.integer();
}

Json JsonCursor::read() {
  Json value;
  read_value(value, static_cast<int>(begun_.size()));
  return value;
}

void JsonCursor::end() {
  skip_space();
  if (at_ != text_.size()) wrong("text after the end");
}

void JsonCursor::read_value(Json &out, int depth) {
  if (++values_ > Json::kMaxMarks) wrong("it has more values than any of our files");
  out.where_ = where_;
  out.line_ = line_;
  switch (peek()) {
    case '{':
      return read_members(out, depth + 1);
    case '[':
      return read_items(out, depth + 1);
    case '"':
      ++at_;
      return read_text(out.value_.emplace<std::string>());
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
      return read_number(out);
  }
}

void JsonCursor::expect_word(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) wrong("a value is expected");
  at_ += word.size();
}

void JsonCursor::not_a_number(const char *word) const {
  fail(EK_MALFORMED_FILE, *where_, ": ", word, " is not a JSON number; export the file again");
}

void JsonCursor::enter(int depth) const {
  if (depth > Json::kMaxDepth) fail(EK_MALFORMED_FILE, *where_, ": nested too deeply to be one of our files");
}

void JsonCursor::read_items(Json &out, int depth) {
  enter(depth);
  ++at_;
  auto &items = out.value_.emplace<Json::Array>();
  skip_space();
  if (accept(']')) return;
  do {
    skip_space();
    read_value(items.emplace_back(), depth);
    skip_space();
  } while (accept(','));
  if (!accept(']')) wrong("a comma or the end of a list is expected");
}

void JsonCursor::read_members(Json &out, int depth) {
  enter(depth);
  ++at_;
  auto &members = out.value_.emplace<Json::Object>();
  skip_space();
  if (accept('}')) return;
  do {
    skip_space();
    if (!accept('"')) wrong("a name in double quotes is expected");
    auto &member = members.emplace_back();
    read_text(member.first);
    skip_space();
    if (!accept(':')) wrong("a colon is expected");
    skip_space();
    read_value(member.second, depth);
    skip_space();
  } while (accept(','));
  if (!accept('}')) wrong("a comma or the end of an object is expected");
  if (const std::string *name = first_duplicate(members)) {
    fail(EK_MALFORMED_FILE, *where_, ": the name ", in_quotes(*name), " appears twice; export the file again");
  }
}

// After the opening quote.
void JsonCursor::read_text(std::string &out) {
  while (true) {
    const std::size_t start = at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
           static_cast<unsigned char>(text_[at_]) >= 0x20) {
      ++at_;
    }
    out.append(text_.substr(start, at_ - start));
    if (at_ == text_.size()) wrong("a string without an end");
    if (accept('"')) return;
    if (!accept('\\')) wrong("a control character in a string");
    read_escape(out);
  }
}

void JsonCursor::read_escape(std::string &out) {
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
      std::uint32_t value = read_hex();
      if (value >= 0xD800 && value < 0xDC00 && text_.substr(at_, 2) == "\\u") {
        const std::size_t second_at = at_;
        at_ += 2;
        const std::uint32_t second = read_hex();
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
      wrong("an unknown escape in a string");
  }
  ++at_;
}

std::uint32_t JsonCursor::read_hex() {
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
      wrong("a \\u escape without four hex digits");
    }
    value = value << 4 | digit;
  }
  return value;
}

void JsonCursor::skip_digits() noexcept {
  while (is_digit(peek())) ++at_;
}

void JsonCursor::read_number(Json &out) {
  const std::size_t start = at_;
  const bool negative = accept('-');
  if (negative && peek() == 'I') {
    expect_word("Infinity");
    not_a_number("-Infinity");
  }
  const std::size_t first_digit = at_;
  if (!is_digit(peek())) wrong("a value is expected");
  if (!accept('0')) skip_digits();
  const std::size_t digits = at_ - first_digit;
  bool whole = true;
  if (peek() == '.') {
    ++at_;
    if (!is_digit(peek())) wrong("a digit is expected after the point");
    skip_digits();
    whole = false;
  }
  if (peek() == 'e' || peek() == 'E') {
    ++at_;
    if (peek() == '+' || peek() == '-') ++at_;
    if (!is_digit(peek())) wrong("a digit is expected in the exponent");
    skip_digits();
    whole = false;
  }
  if (whole && digits > static_cast<std::size_t>(Json::kMaxIntegerDigits)) {
    wrong("an integer with too many digits");
  }
  if (std::int64_t value; whole && fits_integer(text_.substr(first_digit, digits), negative, value)) {
    out.value_ = value;
    return;
  }
  out.value_ = to_double(text_.substr(start, at_ - start));
}

double JsonCursor::to_double(std::string_view text) {
  std::istringstream stream{std::string(text)};
  stream.imbue(std::locale::classic());  // the process may use a comma in numbers
  double value = 0;
  stream >> value;
  // Out of range: libstdc++ gives the largest double, libc++ infinity; both set the flag.
  if (stream.fail() && std::fabs(value) >= std::numeric_limits<double>::max()) {
    return std::copysign(std::numeric_limits<double>::infinity(), value);
  }
  return value;
}

Json Json::parse(std::string_view text, const std::string &where) {
  // Before anything is made of it; strings are looked at too, which nobody fills with these.
  const auto is_mark = [](char c) { return c == ',' || c == ':' || c == '{' || c == '['; };
  if (static_cast<std::size_t>(std::count_if(text.begin(), text.end(), is_mark)) > kMaxMarks) {
    fail(EK_MALFORMED_FILE, where, ": has more values than any of our files (over ", kMaxMarks, " marks of JSON)");
  }
  JsonCursor cursor(text, where);
  Json out = cursor.read();
  cursor.end();
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
