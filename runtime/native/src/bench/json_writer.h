// JSON that is written from front to back.
#ifndef EDGEKIT_BENCH_JSON_WRITER_H
#define EDGEKIT_BENCH_JSON_WRITER_H

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "sampling/json_text.h"

namespace edgekit {

class JsonWriter {
 public:
  // An object or a list as the next value; `body` writes what is in it.
  template <typename Body>
  void object(Body &&body) {
    enclosed('{', '}', body);
  }
  template <typename Body>
  void list(Body &&body) {
    enclosed('[', ']', body);
  }

  // The next value. Numbers that JSON does not have are null.
  template <typename Number>
  void value(Number number) {
    static_assert(std::is_arithmetic<Number>::value, "give text as a string_view");
    comma();
    if constexpr (std::is_same<Number, bool>::value) {
      text_ += number ? "true" : "false";
    } else if constexpr (std::is_integral<Number>::value) {
      text_ += std::to_string(number);
    } else {
      text_ += std::isfinite(number) ? json_text(static_cast<double>(number)) : "null";
    }
  }
  void value(std::string_view text) {
    comma();
    text_ += json_text(text);
  }
  void null() {
    comma();
    text_ += "null";
  }
  // What is JSON already.
  void raw(std::string_view json) {
    comma();
    text_ += json;
  }

  // The name of the next value.
  JsonWriter &name(std::string_view name) {
    comma();
    text_ += json_text(name) + ":";
    first_ = true;
    return *this;
  }
  template <typename Value>
  void member(std::string_view name, const Value &given) {
    this->name(name).value(given);
  }

  std::string take() { return std::move(text_); }

 private:
  template <typename Body>
  void enclosed(char open, char close, Body &&body) {
    comma();
    text_ += open;
    first_ = true;
    body();
    text_ += close;
    first_ = false;
  }
  void comma() {
    if (!first_) text_ += ',';
    first_ = false;
  }

  std::string text_;
  bool first_ = true;
};

}  // namespace edgekit

#endif  // EDGEKIT_BENCH_JSON_WRITER_H
