// Sets of characters.
#ifndef EDGEKIT_TEXT_CODE_POINTS_H
#define EDGEKIT_TEXT_CODE_POINTS_H

#include <cstdint>
#include <string_view>
#include <vector>

namespace edgekit {

class CodePoints {
 public:
  struct Range {
    std::uint32_t first, last;
  };

  CodePoints() = default;
  static CodePoints of(std::uint32_t first, std::uint32_t last);

  // Characters whose category begins with `name`: L, Lu. False for a name that no category has.
  static bool find_category(std::string_view name, CodePoints &found);
  // \s, \d and \w, as Oniguruma has them. A \w that stands in a set, [\w], lacks raised digits and fractions of Latin-1.
  static CodePoints space();
  static CodePoints digit();
  static CodePoints word(bool in_set);

  void add(const CodePoints &others);
  CodePoints inverse() const;
  CodePoints both(const CodePoints &others) const;
  bool holds(std::uint32_t code_point) const noexcept;

  // In order, with a gap between any two.
  const std::vector<Range> &ranges() const noexcept { return ranges_; }
  friend bool operator==(const CodePoints &a, const CodePoints &b);

 private:
  void settle();
  std::vector<Range> ranges_;
};

}  // namespace edgekit

#endif  // EDGEKIT_TEXT_CODE_POINTS_H
