// A strict JSON reader: UTF-8, no duplicate keys, no trailing bytes, bounded depth; for the flash file's header and
// the manifest, which come from elsewhere.
#ifndef EDGEKIT_JSON_H
#define EDGEKIT_JSON_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace edgekit {

// A value; strings are decoded: UTF-8, in which an escape of half a surrogate pair stays as its three bytes.
// Accessors throw Error (EK_MALFORMED_FILE) that starts with `where()` when the value is of another kind or a key is
// missing.
class Json {
 public:
  enum class Kind { null, boolean, integer, number, string, array, object };
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  static constexpr int kMaxDepth = 500;        // arrays and objects inside each other
  static constexpr int kMaxIntegerDigits = 4300;  // Python's limit, so that both readers refuse the same files
  // Commas, colons and opening brackets: a few bytes of text can take a hundred of memory. The flash file's header of
  // a model with 3840 experts has 315,000.
  static constexpr std::size_t kMaxMarks = std::size_t{1} << 20;

  // `where` names the source in messages ("edgekit.json"). Throws Error (EK_MALFORMED_FILE).
  static Json parse(std::string_view text, const std::string &where);

  Kind kind() const noexcept { return static_cast<Kind>(value_.index()); }
  bool is_null() const noexcept { return kind() == Kind::null; }
  const std::string &where() const noexcept;
  std::uint32_t line() const noexcept { return line_; }  // where the value starts in its source

  bool boolean() const;
  std::int64_t integer() const;  // a number written without fraction and exponent that fits 64 bits
  double number() const;         // integer or number; refuses what is too large for a double
  const std::string &string() const;
  const Array &array() const;
  const Object &object() const;  // in the order of the text

  // Object members. `at` throws when there is none; `find` returns null.
  const Json &at(std::string_view key) const;
  const Json *find(std::string_view key) const;

 private:
  friend class JsonCursor;
  template <typename Wanted>
  const Wanted &get(const char *wanted) const;
  [[noreturn]] void wrong(const char *wanted) const;

  // In the order of Kind. An integer of more than 64 bits is a number.
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> value_;
  std::shared_ptr<const std::string> where_;
  std::uint32_t line_ = 0;
};

// Reads a document part by part, for one whose values would take too much memory as Json: lists and objects are entered
// and left, what is within is read as a whole. Every call throws Error (EK_MALFORMED_FILE) where the text has
// something else.
//
//   JsonCursor cursor(text, "tokenizer.json");
//   cursor.enter_object();
//   while (cursor.next_member(name)) { if (name == "version") cursor.read_string(version); else cursor.read(); }
//   cursor.end();
class JsonCursor {
 public:
  // `text` has to outlive it. `where` names the source in messages.
  JsonCursor(std::string_view text, const std::string &where);

  void enter_object();
  bool next_member(std::string &name);  // false: the object has ended. The value is to be read.
  void enter_array();
  bool next_item();                     // false: the list has ended

  bool at_array() const noexcept { return peek() == '['; }
  bool at_object() const noexcept { return peek() == '{'; }
  void read_string(std::string &out);   // replaces what `out` holds
  std::int64_t read_integer();
  Json read();                          // of at most Json::kMaxMarks values, counted over the document
  void end();                           // nothing stands behind the value

  [[noreturn]] void wrong(const char *what) const;

 private:
  char peek() const noexcept { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool accept(char letter) noexcept;
  void skip_space() noexcept;
  void enter(int depth) const;
  void read_value(Json &out, int depth);
  void read_members(Json &out, int depth);
  void read_items(Json &out, int depth);
  void read_text(std::string &out);
  void read_escape(std::string &out);
  std::uint32_t read_hex();
  void read_number(Json &out);
  void expect_word(std::string_view word);
  [[noreturn]] void not_a_number(const char *word) const;
  void skip_digits() noexcept;
  static double to_double(std::string_view text);
  bool next(char closing, const char *expected);

  std::string_view text_;
  std::shared_ptr<const std::string> where_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
  std::vector<bool> begun_;  // of each list and object that was entered, whether it has had a value
  std::size_t values_ = 0;
};

}  // namespace edgekit

#endif  // EDGEKIT_JSON_H
