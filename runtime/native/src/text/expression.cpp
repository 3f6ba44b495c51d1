#include "text/expression.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "error.h"
#include "text/code_points.h"
#include "text/unicode.h"
#include "utf8.h"

namespace edgekit {
namespace {

constexpr std::uint16_t kMatch = 0x8000, kDead = 0x7FFF;
// Published expressions have 30 states, 20 kinds of characters and 100 steps.
constexpr std::size_t kMostStates = 4096, kMostSteps = 4096, kMostSets = 64, kMostKinds = 250;
constexpr std::size_t kMostWork = std::size_t{1} << 22;
constexpr std::size_t kMostPattern = 4096;
constexpr int kMostDepth = 50;
constexpr std::size_t kMostRepeats = 1000;
// How many characters may be read for one of the text, and without regard to its length.
constexpr std::size_t kMostReads = 64, kFreeReads = 4096;

struct Node;
using NodePtr = std::unique_ptr<Node>;

struct Node {
  enum class Kind { set, look, sequence, alternatives, repeat } kind;
  std::size_t set = 0;          // of set and look: which of the compiler's
  std::vector<NodePtr> parts;   // of sequence and alternatives all, of repeat one
  std::size_t least = 0, most = 0;  // of repeat; most is kEndless where nothing bounds it
  bool greedy = true;           // of repeat
  bool keeps = false;           // of repeat: gives nothing back
  std::size_t at = 0;           // of one that does so: where in the pattern it says so
  bool negative = false;        // of look: what follows may be the end of the text
};

constexpr std::size_t kEndless = static_cast<std::size_t>(-1);

// A step of the matcher that the table is made of: one that reads a character of `set`, one that looks whether the next
// is of it (the end of the text is of none, and `negative` asks for that), one that goes on at two places, of which the
// first comes first, or the end.
struct Step {
  enum class Kind { set, look, fork, match } kind;
  std::size_t set = 0;
  bool negative = false;
  std::size_t next = 0, other = 0;
};

}  // namespace

class ExpressionCompiler {
 public:
  ExpressionCompiler(std::string_view pattern, Expression &out) : pattern_(pattern), out_(out) {}

  void compile() {
    if (pattern_.size() > kMostPattern) too_large();
    if (utf8_prefix(pattern_) != pattern_.size()) unsupported("bytes that are not UTF-8", at_);
    const NodePtr root = alternatives(0);
    if (at_ != pattern_.size()) unsupported("a closing bracket without an opening one", at_);
    const std::size_t end = add({Step::Kind::match, 0, false, 0, 0});
    start_ = lay(*root, end);
    check_kept();
    divide();
    tabulate();
  }

 private:
  // --- reading the pattern --------------------------------------------------------------------------------------------

  [[noreturn]] void unsupported(const std::string &what, std::size_t at) const {
    fail(EK_UNSUPPORTED_BUNDLE, out_.where_, ": the expression ", in_quotes(pattern_), " has ", what, " at byte ", at,
         ", which this library does not know; it splits text with simple expressions only");
  }

  [[noreturn]] void too_large() const {
    fail(EK_UNSUPPORTED_BUNDLE, out_.where_, ": the expression ", in_quotes(pattern_),
         " is larger than any that tokenizers split text with");
  }

  bool more() const { return at_ < pattern_.size(); }
  char peek() const { return more() ? pattern_[at_] : '\0'; }
  bool accept(std::string_view text) {
    if (pattern_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }

  static NodePtr make(Node::Kind kind) {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    return node;
  }

  NodePtr set_node(const CodePoints &set, Node::Kind kind = Node::Kind::set) {
    auto node = make(kind);
    const auto found = std::find(sets_.begin(), sets_.end(), set);
    node->set = static_cast<std::size_t>(found - sets_.begin());
    if (found == sets_.end()) sets_.push_back(set);
    if (sets_.size() > kMostSets) too_large();
    return node;
  }

  NodePtr alternatives(int depth) {
    if (depth > kMostDepth) too_large();
    auto node = make(Node::Kind::alternatives);
    do {
      node->parts.push_back(sequence(depth));
    } while (accept("|"));
    return node;
  }

  NodePtr sequence(int depth) {
    auto node = make(Node::Kind::sequence);
    while (more() && peek() != '|' && peek() != ')') {
      const std::size_t begin = at_;
      node->parts.push_back(repeated(atom(depth)));
      if (ignoring_case_) check_letters(begin);
    }
    return node;
  }

  // Two letters may be one character in another case, as ss is.
  void check_letters(std::size_t begin) const {
    if (begin == 0 || at_ != begin + 1) return;
    std::string both(pattern_.substr(begin - 1, 2));
    for (char &letter : both) letter = static_cast<char>(letter | 0x20);
    for (const char *pair : {"ss", "st", "ff", "fi", "fl"}) {
      if (both == pair) unsupported("letters that are one character in another case", begin - 1);
    }
  }

  NodePtr atom(int depth) {
    const std::size_t begin = at_;
    if (accept("(?:")) return group(depth, ignoring_case_);
    if (accept("(?i:")) return group(depth, true);
    if (accept("(?!") || accept("(?=")) {
      const bool negative = pattern_[begin + 2] == '!';
      const NodePtr next = atom(depth + 1);
      if (!accept(")") || next->kind != Node::Kind::set) unsupported("a look at more than one character", begin);
      const CodePoints set = sets_[next->set];
      auto node = set_node(negative ? set.inverse() : set, Node::Kind::look);
      node->negative = negative;
      return node;
    }
    if (!more()) unsupported("an end where something is to stand", begin);
    if (peek() == '(') unsupported("a group of this kind", begin);
    if (accept("[")) return set_node(bracket(depth));
    if (accept(".")) return set_node(CodePoints::of('\n', '\n').inverse());
    if (peek() == '\\') return set_node(escape(false));
    if (std::string_view("*+?{^$").find(peek()) != std::string_view::npos) unsupported("a sign", begin);
    return set_node(either_case(next_code_point(pattern_, at_)));
  }

  NodePtr group(int depth, bool ignoring_case) {
    const bool before = ignoring_case_;
    ignoring_case_ = ignoring_case;
    NodePtr node = alternatives(depth + 1);
    ignoring_case_ = before;
    if (!accept(")")) unsupported("a group without an end", at_);
    return node;
  }

  // A character, in both cases where case is to be ignored.
  CodePoints either_case(std::uint32_t code_point) const {
    CodePoints found = CodePoints::of(code_point, code_point);
    if (!ignoring_case_) return found;
    if (code_point >= 0x80) unsupported("a character beyond ASCII whose case is to be ignored", at_);
    const std::uint32_t small = code_point | 0x20;
    if (small < 'a' || small > 'z') return found;
    found.add(CodePoints::of(small, small));
    found.add(CodePoints::of(small - 0x20, small - 0x20));
    if (small == 's') found.add(CodePoints::of(0x17F, 0x17F));    // the long s
    if (small == 'k') found.add(CodePoints::of(0x212A, 0x212A));  // the sign of the kelvin
    return found;
  }

  CodePoints escape(bool in_set) {
    const std::size_t begin = at_;
    ++at_;
    if (!more()) unsupported("a backslash without a character", begin);
    const std::uint32_t code_point = next_code_point(pattern_, at_);
    switch (code_point) {
      case 's':
        return CodePoints::space();
      case 'S':
        return CodePoints::space().inverse();
      case 'd':
        return CodePoints::digit();
      case 'D':
        return CodePoints::digit().inverse();
      case 'w':
        return CodePoints::word(in_set);
      case 'W':
        return CodePoints::word(in_set).inverse();
      case 'n':
        return CodePoints::of('\n', '\n');
      case 'r':
        return CodePoints::of('\r', '\r');
      case 't':
        return CodePoints::of('\t', '\t');
      case 'f':
        return CodePoints::of('\f', '\f');
      case 'v':
        return CodePoints::of('\v', '\v');
      case 'p':
      case 'P':
        return property(code_point == 'P', begin);
      case 'x':
        return hexadecimal(begin);
      default:
        break;
    }
    if (code_point >= 0x80 || std::string_view("\\^$.|?*+()[]{}-/'\"#&~ !,:;<=>@_`%").find(
                                  static_cast<char>(code_point)) == std::string_view::npos) {
      unsupported("an escape", begin);
    }
    return either_case(code_point);
  }

  CodePoints property(bool negative, std::size_t begin) {
    std::string_view name;
    if (accept("{")) {
      if (accept("^")) negative = !negative;
      const std::size_t end = pattern_.find('}', at_);
      if (end == std::string_view::npos) unsupported("a property without an end", begin);
      name = pattern_.substr(at_, end - at_);
      at_ = end + 1;
    } else {
      name = pattern_.substr(at_, 1);
      at_ += name.size();
    }
    CodePoints found;
    if (!CodePoints::find_category(name, found)) unsupported("a property", begin);
    return negative ? found.inverse() : found;
  }

  CodePoints hexadecimal(std::size_t begin) {
    const bool bracketed = accept("{");
    std::uint32_t value = 0;
    std::size_t digits = 0;
    while (more() && digits < (bracketed ? 6u : 2u)) {
      const char letter = peek();
      const char small = static_cast<char>(letter | 0x20);
      if (letter >= '0' && letter <= '9') {
        value = value << 4 | static_cast<std::uint32_t>(letter - '0');
      } else if (small >= 'a' && small <= 'f') {
        value = value << 4 | static_cast<std::uint32_t>(small - 'a' + 10);
      } else {
        break;
      }
      ++at_;
      ++digits;
    }
    // Two digits beyond ASCII are a byte to Oniguruma.
    if (digits == 0 || value >= kCodePoints || (bracketed ? !accept("}") : value >= 0x80)) {
      unsupported("an escape", begin);
    }
    return either_case(value);
  }

  // Behind the opening bracket.
  CodePoints bracket(int depth) {
    if (depth > kMostDepth) too_large();
    const std::size_t begin = at_ - 1;
    const bool negative = accept("^");
    CodePoints found, left;  // `left` is the set in front of &&
    bool narrowed = false, empty = true;
    while (true) {
      if (!more()) unsupported("a set without an end", begin);
      if (!empty && accept("]")) break;
      if (accept("&&")) {
        left = narrowed ? left.both(found) : found;
        narrowed = true;
        found = CodePoints();
        continue;
      }
      if (peek() == ']' || pattern_.substr(at_, 2) == "[:") unsupported("a set of this kind", begin);
      empty = false;
      if (accept("[")) {
        found.add(bracket(depth + 1));
        continue;
      }
      const std::size_t first_at = at_;
      std::optional<std::uint32_t> first;
      found.add(member(first));
      if (peek() != '-' || pattern_.substr(at_, 2) == "-]") continue;
      ++at_;
      std::optional<std::uint32_t> last;
      member(last);
      if (!first || !last || *first > *last) unsupported("a range", first_at);
      if (ignoring_case_) unsupported("a range whose case is to be ignored", first_at);
      found.add(CodePoints::of(*first, *last));
    }
    if (narrowed) found = left.both(found);
    return negative ? found.inverse() : found;
  }

  // One of a set; `single` is the character where it is one.
  CodePoints member(std::optional<std::uint32_t> &single) {
    if (!more()) unsupported("a set without an end", at_);
    if (peek() == '\\') {
      const CodePoints found = escape(true);
      if (found.ranges().size() == 1 && found.ranges()[0].first == found.ranges()[0].last) {
        single = found.ranges()[0].first;
      }
      return found;
    }
    single = next_code_point(pattern_, at_);
    return either_case(*single);
  }

  NodePtr repeated(NodePtr node) {
    for (bool again = false;; again = true) {
      const std::size_t begin = at_;
      std::size_t least = 0, most = kEndless;
      bool bounded = false;
      if (accept("*")) {
      } else if (accept("+")) {
        least = 1;
      } else if (accept("?")) {
        most = 1;
      } else if (accept("{")) {
        bounds(least, most, begin);
        bounded = true;
      } else {
        return node;
      }
      if (again || node->kind == Node::Kind::look) unsupported("a repetition of this kind", begin);
      auto whole = make(Node::Kind::repeat);
      whole->least = least;
      whole->most = most;
      whole->parts.push_back(std::move(node));
      if (accept("+")) {
        if (bounded || whole->parts.front()->kind != Node::Kind::set) unsupported(kKeeps, begin);
        whole->keeps = true;
        whole->at = begin;
      } else {
        whole->greedy = !accept("?");
      }
      node = std::move(whole);
    }
  }

  void bounds(std::size_t &least, std::size_t &most, std::size_t begin) {
    const auto number = [this](std::size_t &out) {
      const std::size_t start = at_;
      for (out = 0; peek() >= '0' && peek() <= '9' && out <= kMostRepeats; ++at_) {
        out = out * 10 + static_cast<std::size_t>(peek() - '0');
      }
      return at_ > start;
    };
    const bool has_least = number(least);
    most = least;
    if (accept(",") && !number(most)) most = kEndless;
    if (!accept("}") || (!has_least && most == kEndless) || (most != kEndless && most < least)) {
      unsupported("a repetition of this kind", begin);
    }
    if (least > kMostRepeats || (most != kEndless && most > kMostRepeats)) too_large();
  }

  // --- steps ----------------------------------------------------------------------------------------------------------

  std::size_t add(const Step &step) {
    if (steps_.size() >= kMostSteps) too_large();
    steps_.push_back(step);
    return steps_.size() - 1;
  }

  std::size_t fork(std::size_t first, std::size_t second) {
    return add({Step::Kind::fork, 0, false, first, second});
  }

  // The step at which `node` begins, which goes on at `next`.
  std::size_t lay(const Node &node, std::size_t next) {
    if (++work_ > kMostWork) too_large();  // what is empty lays no step, however often it is repeated
    switch (node.kind) {
      case Node::Kind::set:
        return add({Step::Kind::set, node.set, false, next, 0});
      case Node::Kind::look:
        return add({Step::Kind::look, node.set, node.negative, next, 0});
      case Node::Kind::sequence:
        for (auto part = node.parts.rbegin(); part != node.parts.rend(); ++part) next = lay(**part, next);
        return next;
      case Node::Kind::alternatives: {
        std::size_t first = lay(*node.parts.back(), next);
        for (auto part = node.parts.rbegin() + 1; part != node.parts.rend(); ++part) {
          const std::size_t before = lay(**part, next);
          first = fork(before, first);
        }
        return first;
      }
      case Node::Kind::repeat:
        break;
    }
    const Node &part = *node.parts.front();
    if (node.keeps) kept_.push_back({part.set, next, node.at});
    if (node.most == kEndless) {
      const std::size_t loop = fork(0, 0);
      const std::size_t body = lay(part, loop);
      steps_[loop].next = node.greedy ? body : next;
      steps_[loop].other = node.greedy ? next : body;
      next = loop;
    } else {
      const std::size_t behind = next;
      for (std::size_t i = node.least; i < node.most; ++i) {
        const std::size_t body = lay(part, next);
        next = node.greedy ? fork(body, behind) : fork(behind, body);
      }
    }
    for (std::size_t i = 0; i < node.least; ++i) next = lay(part, next);
    return next;
  }

  // A repetition that gives nothing back (++) finds what a greedy one does where nothing is won by giving back: what
  // follows always matches, or begins with none of its characters. No other is known.
  void check_kept() {
    seen_.assign(steps_.size(), 0);
    for (const Kept &kept : kept_) {
      bool always = false, meets = false;
      std::vector<std::size_t> open{kept.next};
      for (++round_; !open.empty() && !always;) {
        const std::size_t at = open.back();
        open.pop_back();
        if (seen_[at] == round_) continue;
        seen_[at] = round_;
        const Step &step = steps_[at];
        if (step.kind == Step::Kind::match) {
          always = true;
        } else if (step.kind == Step::Kind::fork) {
          open.push_back(step.other);
          open.push_back(step.next);
        } else if (!meets) {
          work_ += 1 + sets_[step.set].ranges().size() + sets_[kept.set].ranges().size();
          if (work_ > kMostWork) too_large();
          meets = !sets_[step.set].both(sets_[kept.set]).ranges().empty();
        }
      }
      if (meets && !always) unsupported(kKeeps, kept.at);
    }
  }

  // --- kinds of characters --------------------------------------------------------------------------------------------

  // Characters that all sets have or lack alike are of one kind.
  void divide() {
    std::vector<std::uint32_t> borders{0};
    for (const CodePoints &set : sets_) {
      for (const auto &range : set.ranges()) {
        borders.push_back(range.first);
        borders.push_back(range.last + 1);
      }
    }
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    std::vector<std::uint64_t> holds(borders.size());  // bits of the sets that hold what begins there
    for (std::size_t set = 0; set < sets_.size(); ++set) {
      for (const auto &range : sets_[set].ranges()) {
        auto at = std::lower_bound(borders.begin(), borders.end(), range.first);
        for (; at != borders.end() && *at <= range.last; ++at) {
          holds[static_cast<std::size_t>(at - borders.begin())] |= std::uint64_t{1} << set;
        }
      }
    }
    std::map<std::uint64_t, std::uint8_t> kinds;
    std::vector<std::uint8_t> kind_of(kCodePoints);
    for (std::size_t i = 0; i < borders.size() && borders[i] < kCodePoints; ++i) {
      const auto [found, added] = kinds.emplace(holds[i], static_cast<std::uint8_t>(sets_of_kind_.size()));
      if (added) sets_of_kind_.push_back(holds[i]);
      if (sets_of_kind_.size() > kMostKinds) too_large();
      const std::uint32_t next = i + 1 < borders.size() ? std::min(borders[i + 1], kCodePoints) : kCodePoints;
      std::fill(kind_of.begin() + borders[i], kind_of.begin() + next, found->second);
    }
    std::map<std::vector<std::uint8_t>, std::uint16_t> pages;
    for (auto page = kind_of.begin(); page != kind_of.end(); page += 256) {
      const std::vector<std::uint8_t> bytes(page, page + 256);
      const auto [found, added] = pages.emplace(bytes, static_cast<std::uint16_t>(pages.size()));
      if (added) out_.pages_.insert(out_.pages_.end(), bytes.begin(), bytes.end());
      out_.page_of_.push_back(found->second);
    }
    out_.kinds_ = static_cast<std::uint32_t>(sets_of_kind_.size());
  }

  // --- states ---------------------------------------------------------------------------------------------------------

  using Places = std::vector<std::uint16_t>;  // steps, the preferred first

  // Follows steps that read nothing, from `place` on, in front of a character with these sets (`end`: of none). False
  // behind a match, after which nothing that comes later counts.
  bool follow(std::size_t place, std::uint64_t sets, bool end, Places &reads, bool &matched) {
    std::vector<std::size_t> open{place};
    while (!open.empty()) {
      const std::size_t at = open.back();
      open.pop_back();
      if (++work_ > kMostWork) too_large();
      if (seen_[at] == round_) continue;
      seen_[at] = round_;
      const Step &step = steps_[at];
      switch (step.kind) {
        case Step::Kind::set:
          reads.push_back(static_cast<std::uint16_t>(at));
          break;
        case Step::Kind::look:
          if (end ? step.negative : (sets >> step.set & 1) != 0) open.push_back(step.next);
          break;
        case Step::Kind::fork:
          open.push_back(step.other);
          open.push_back(step.next);
          break;
        case Step::Kind::match:
          matched = true;
          return false;
      }
    }
    return true;
  }

  void tabulate() {
    std::map<Places, std::uint16_t> numbers;
    std::vector<Places> states;
    const auto state_of = [&](const Places &places) {
      if (places.empty()) return kDead;
      const auto [found, added] = numbers.emplace(places, static_cast<std::uint16_t>(states.size()));
      if (added) states.push_back(places);
      if (states.size() > kMostStates) too_large();
      return found->second;
    };
    state_of({static_cast<std::uint16_t>(start_)});
    for (std::size_t state = 0; state < states.size(); ++state) {
      const Places places = states[state];
      for (std::size_t kind = 0; kind <= sets_of_kind_.size(); ++kind) {
        const bool end = kind == sets_of_kind_.size();
        const std::uint64_t sets = end ? 0 : sets_of_kind_[kind];
        Places reads, next;
        bool matched = false;
        ++round_;
        for (const std::uint16_t place : places) {
          if (!follow(place, sets, end, reads, matched)) break;
        }
        if (matched && state == 0) {
          fail(EK_UNSUPPORTED_BUNDLE, out_.where_, ": the expression ", in_quotes(pattern_),
               " matches a text of no length, which splits nothing");
        }
        ++round_;
        for (const std::uint16_t place : reads) {
          const Step &step = steps_[place];
          if (end || (sets >> step.set & 1) == 0 || seen_[step.next] == round_) continue;
          seen_[step.next] = round_;
          next.push_back(static_cast<std::uint16_t>(step.next));
        }
        out_.table_.push_back(static_cast<std::uint16_t>(state_of(next) | (matched ? kMatch : 0)));
      }
    }
  }

  static constexpr char kKeeps[] = "a repetition that gives nothing back";
  // Of a repetition that gives nothing back: its characters, the step behind it, and where the pattern says so.
  struct Kept {
    std::size_t set, next, at;
  };

  std::string_view pattern_;
  Expression &out_;
  std::size_t at_ = 0;
  bool ignoring_case_ = false;
  std::vector<CodePoints> sets_;
  std::vector<Step> steps_;
  std::vector<Kept> kept_;
  std::size_t start_ = 0;
  std::vector<std::uint64_t> sets_of_kind_;
  std::vector<std::size_t> seen_;  // by step, the round in which it was met last
  std::size_t round_ = 0, work_ = 0;
};

Expression::Expression(std::string_view pattern, const std::string &where) : where_(where) {
  ExpressionCompiler(pattern, *this).compile();
}

std::size_t Expression::run(std::string_view text, std::size_t begin, std::size_t &read) const noexcept {
  std::size_t state = 0, found = kNone;
  const std::size_t width = std::size_t{kinds_} + 1;
  for (std::size_t at = begin;;) {
    const std::size_t here = at;
    const bool end = at >= text.size();
    const std::size_t kind = end ? kinds_ : kind_of(next_code_point(text, at));
    const std::uint16_t entry = table_[state * width + kind];
    if ((entry & kMatch) != 0) found = here;
    ++read;
    const std::uint16_t next = entry & static_cast<std::uint16_t>(~kMatch);
    if (end || next == kDead) return found;
    state = next;
  }
}

Expression::Found Expression::find(std::string_view text, std::size_t begin, std::size_t &read) const {
  for (std::size_t at = begin; at < text.size();) {
    const std::size_t end = run(text, at, read);
    if (read > kFreeReads + kMostReads * text.size()) {
      fail(EK_UNSUPPORTED_BUNDLE, where_, ": its expression takes too long on this text");
    }
    if (end != kNone) return {at, end};
    next_code_point(text, at);
  }
  return {kNone, kNone};
}

}  // namespace edgekit
