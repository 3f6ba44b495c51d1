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
  friend class JsonParser;
  template <typename Wanted>
  const Wanted &get(const char *wanted) const;
  [[noreturn]] void wrong(const char *wanted) const;

  // In the order of Kind. An integer of more than 64 bits is a number.
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> value_;
  std::shared_ptr<const std::string> where_;
  std::uint32_t line_ = 0;
};

}  // namespace edgekit

#endif  // EDGEKIT_JSON_H
