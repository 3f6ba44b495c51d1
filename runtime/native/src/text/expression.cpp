#include "text/expression.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "error.h"
#include "text/code_points.h"
#include "text/expression_pattern.h"
#include "text/unicode.h"
#include "utf8.h"

namespace edgekit {
namespace {

constexpr std::uint16_t kMatch = 0x8000, kDead = 0x7FFF;
// Published expressions have 30 states, 20 kinds of characters and 100 steps.
constexpr std::size_t kMostStates = 4096, kMostSteps = 4096, kMostKinds = 250;
constexpr std::size_t kMostWork = std::size_t{1} << 22;
// How many characters may be read for one of the text, and without regard to its length.
constexpr std::size_t kMostReads = 64, kFreeReads = 4096;

using Node = ExpressionNode;

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
  ExpressionCompiler(std::string_view pattern, Expression &out) : pattern_(pattern, out.where_), out_(out) {}

  void compile() {
    ExpressionTree tree = pattern_.read();
    sets_ = std::move(tree.sets);
    const std::size_t end = add({Step::Kind::match, 0, false, 0, 0});
    start_ = lay(*tree.root, end);
    check_kept();
    divide();
    tabulate();
  }

 private:
  // --- steps ----------------------------------------------------------------------------------------------------------

  std::size_t add(const Step &step) {
    if (steps_.size() >= kMostSteps) pattern_.too_large();
    steps_.push_back(step);
    return steps_.size() - 1;
  }

  std::size_t fork(std::size_t first, std::size_t second) {
    return add({Step::Kind::fork, 0, false, first, second});
  }

  // The step at which `node` begins, which goes on at `next`.
  std::size_t lay(const Node &node, std::size_t next) {
    if (++work_ > kMostWork) pattern_.too_large();  // what is empty lays no step, however often it is repeated
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
    if (node.most == Node::kEndless) {
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
          if (work_ > kMostWork) pattern_.too_large();
          meets = !sets_[step.set].both(sets_[kept.set]).ranges().empty();
        }
      }
      if (meets && !always) pattern_.unsupported_keeping(kept.at);
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
      if (sets_of_kind_.size() > kMostKinds) pattern_.too_large();
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
      if (++work_ > kMostWork) pattern_.too_large();
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
      if (states.size() > kMostStates) pattern_.too_large();
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
          fail(EK_UNSUPPORTED_BUNDLE, out_.where_, ": the expression ", in_quotes(pattern_.text()),
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

  // Of a repetition that gives nothing back: its characters, the step behind it, and where the pattern says so.
  struct Kept {
    std::size_t set, next, at;
  };

  const ExpressionPattern pattern_;
  Expression &out_;
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
