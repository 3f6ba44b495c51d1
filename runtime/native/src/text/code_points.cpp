#include "text/code_points.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "text/unicode.h"

namespace edgekit {
namespace {

// In the order of Category.
constexpr std::array<const char *, 30> kNames{"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                              "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                              "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

bool begins_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

CodePoints of_categories(std::initializer_list<std::string_view> names) {
  CodePoints found;
  for (const std::string_view name : names) {
    CodePoints each;
    CodePoints::find_category(name, each);
    found.add(each);
  }
  return found;
}

}  // namespace

CodePoints CodePoints::of(std::uint32_t first, std::uint32_t last) {
  CodePoints found;
  if (first <= last) found.ranges_.push_back({first, last});
  return found;
}

bool CodePoints::find_category(std::string_view name, CodePoints &found) {
  if (name.empty() || std::none_of(kNames.begin(), kNames.end(),
                                   [name](const char *each) { return begins_with(each, name); })) {
    return false;
  }
  each_category([&](std::uint32_t first, std::uint32_t last, Category category) {
    if (begins_with(kNames[static_cast<std::size_t>(category)], name)) found.ranges_.push_back({first, last});
  });
  found.settle();
  return true;
}

CodePoints CodePoints::space() {
  CodePoints found = of_categories({"Z"});
  found.add(of('\t', '\r'));
  found.add(of(0x85, 0x85));
  return found;
}

CodePoints CodePoints::digit() { return of_categories({"Nd"}); }

CodePoints CodePoints::word(bool in_set) {
  CodePoints found = of_categories({"L", "M", "Nd", "Nl", "Pc"});
  // Letters in circles and squares.
  constexpr CodePoints::Range kOthers[] = {{0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
  // Of Latin-1 raised digits and fractions: Oniguruma asks another table there where no set is.
  constexpr CodePoints::Range kLatin1[] = {{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}};
  for (const CodePoints::Range &range : kOthers) found.add(of(range.first, range.last));
  if (in_set) return found;
  for (const CodePoints::Range &range : kLatin1) found.add(of(range.first, range.last));
  return found;
}

void CodePoints::add(const CodePoints &others) {
  ranges_.insert(ranges_.end(), others.ranges_.begin(), others.ranges_.end());
  settle();
}

void CodePoints::settle() {
  std::sort(ranges_.begin(), ranges_.end(), [](const Range &a, const Range &b) { return a.first < b.first; });
  std::vector<Range> joined;
  for (const Range &range : ranges_) {
    if (!joined.empty() && range.first <= joined.back().last + 1) {
      joined.back().last = std::max(joined.back().last, range.last);
    } else {
      joined.push_back(range);
    }
  }
  ranges_ = std::move(joined);
}

CodePoints CodePoints::inverse() const {
  CodePoints found;
  std::uint32_t next = 0;
  for (const Range &range : ranges_) {
    if (range.first > next) found.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next < kCodePoints) found.ranges_.push_back({next, kCodePoints - 1});
  return found;
}

CodePoints CodePoints::both(const CodePoints &others) const {
  CodePoints out = inverse();
  out.add(others.inverse());
  return out.inverse();
}

bool CodePoints::holds(std::uint32_t code_point) const noexcept {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), code_point,
                                      [](std::uint32_t value, const Range &range) { return value < range.first; });
  return after != ranges_.begin() && std::prev(after)->last >= code_point;
}

bool operator==(const CodePoints &a, const CodePoints &b) {
  return std::equal(a.ranges_.begin(), a.ranges_.end(), b.ranges_.begin(), b.ranges_.end(),
                    [](const auto &x, const auto &y) { return x.first == y.first && x.last == y.last; });
}

}  // namespace edgekit
