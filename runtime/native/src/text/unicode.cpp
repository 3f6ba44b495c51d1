#include "text/unicode.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <vector>

#include "utf8.h"

namespace edgekit {
namespace {

struct Parts {
  std::uint32_t a, b, c;
};

#include "text/unicode_tables.inc"

constexpr std::uint32_t kMask = (1u << 21) - 1;

// Below it every text is composed.
constexpr std::uint32_t kFirstMark = 0x300;

// Hangul, whose syllables are computed (Unicode, 3.12).
constexpr std::uint32_t kSyllables = 0xAC00, kLeading = 0x1100, kVowels = 0x1161, kTrailing = 0x11A7;
constexpr std::uint32_t kLeadingCount = 19, kVowelCount = 21, kTrailingCount = 28;
constexpr std::uint32_t kSyllableCount = kLeadingCount * kVowelCount * kTrailingCount;

// A character and its combining class.
struct Mark {
  std::uint32_t code_point;
  std::uint32_t kind;
};

std::uint32_t class_of(std::uint32_t code_point) {
  const auto *range = std::upper_bound(std::begin(kClasses), std::end(kClasses), code_point,
                                       [](std::uint32_t value, std::uint32_t entry) { return value < (entry & kMask); });
  return range[-1] >> 21;
}

void append_parts(std::vector<Mark> &out, std::uint32_t code_point) {
  if (code_point - kSyllables < kSyllableCount) {
    const std::uint32_t index = code_point - kSyllables, trailing = index % kTrailingCount;
    out.push_back({kLeading + index / (kVowelCount * kTrailingCount), 0});
    out.push_back({kVowels + index / kTrailingCount % kVowelCount, 0});
    if (trailing != 0) out.push_back({kTrailing + trailing, 0});
    return;
  }
  const auto *found = std::lower_bound(std::begin(kParts), std::end(kParts), code_point,
                                       [](const Parts &parts, std::uint32_t value) { return parts.a < value; });
  if (found == std::end(kParts) || found->a != code_point) {
    out.push_back({code_point, class_of(code_point)});
    return;
  }
  append_parts(out, found->b);  // a part may have parts, of which there are a few at most
  if (found->c != 0) append_parts(out, found->c);
}

// What two characters compose, 0: nothing.
std::uint32_t composition(std::uint32_t first, std::uint32_t second) {
  if (first - kLeading < kLeadingCount && second - kVowels < kVowelCount) {
    return kSyllables + ((first - kLeading) * kVowelCount + (second - kVowels)) * kTrailingCount;
  }
  if (first - kSyllables < kSyllableCount && (first - kSyllables) % kTrailingCount == 0 && second > kTrailing &&
      second < kTrailing + kTrailingCount) {
    return first + (second - kTrailing);
  }
  const auto *found = std::lower_bound(
      std::begin(kCompositions), std::end(kCompositions), std::make_pair(first, second),
      [](const Parts &each, const auto &wanted) { return std::make_pair(each.a, each.b) < wanted; });
  return found != std::end(kCompositions) && found->a == first && found->b == second ? found->c : 0;
}

}  // namespace

void each_category(const std::function<void(std::uint32_t, std::uint32_t, Category)> &each) {
  for (std::size_t i = 0; i < std::size(kCategories); ++i) {
    const std::uint32_t next = i + 1 < std::size(kCategories) ? kCategories[i + 1] & kMask : kCodePoints;
    each(kCategories[i] & kMask, next - 1, static_cast<Category>(kCategories[i] >> 21));
  }
}

bool is_white(std::uint32_t code_point) {
  return (code_point >= 0x09 && code_point <= 0x0D) || (code_point >= 0x1C && code_point <= 0x20) || code_point == 0x85 ||
         code_point == 0xA0 || code_point == 0x1680 || (code_point >= 0x2000 && code_point <= 0x200A) ||
         code_point == 0x2028 || code_point == 0x2029 || code_point == 0x202F || code_point == 0x205F ||
         code_point == 0x3000;
}

std::string composed(std::string_view text) {
  std::vector<Mark> marks;
  bool plain = true;
  for (std::size_t at = 0; plain && at < text.size();) plain = next_code_point(text, at) < kFirstMark;
  if (plain) return std::string(text);
  marks.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) append_parts(marks, next_code_point(text, at));
  for (auto begin = marks.begin(); begin != marks.end();) {  // marks behind a character, by their classes
    if (begin->kind == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, marks.end(), [](const Mark &mark) { return mark.kind == 0; });
    std::stable_sort(begin, end, [](const Mark &a, const Mark &b) { return a.kind < b.kind; });
    begin = end;
  }
  std::string out;
  out.reserve(text.size());
  for (auto begin = marks.begin(); begin != marks.end();) {
    // A character takes in each mark that no other one of its class, or of none, stands in front of.
    const auto starter = begin;
    std::uint32_t last = 0;  // the class of the mark before
    std::vector<std::uint32_t> kept;
    ++begin;
    if (starter->kind == 0) {
      bool beside = true;  // nothing is kept between
      for (; begin != marks.end(); ++begin) {
        const bool blocked = !beside && (last >= begin->kind);
        const std::uint32_t whole = blocked ? 0 : composition(starter->code_point, begin->code_point);
        if (whole != 0) {
          starter->code_point = whole;
          continue;
        }
        if (begin->kind == 0) break;
        kept.push_back(begin->code_point);
        last = begin->kind;
        beside = false;
      }
    }
    append_utf8(out, starter->code_point);
    for (const std::uint32_t code_point : kept) append_utf8(out, code_point);
  }
  return out;
}

}  // namespace edgekit
