#include "text/splitter.h"

#include <algorithm>
#include <utility>

#include "text/tables.h"

namespace edgekit {
namespace {

// What ByteLevel splits by, unless it is told not to: GPT-2's.
constexpr char kByteLevel[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

Splitter::Splitter(const Json &table) {
  if (!table.is_null()) add(table);
}

void Splitter::add(const Json &table) {
  const std::string &type = type_of(table);
  if (of_bytes_) unknown_part(table, "pre_tokenizer", type + " behind ByteLevel");
  if (type == "Sequence") {
    for (const Json &each : table.at("pretokenizers").array()) add(each);
  } else if (type == "Split") {
    add_split(table);
  } else if (type == "Digits") {
    Step step;
    step.behavior = flag(table, "individual_digits", false) ? Behavior::isolated : Behavior::contiguous;
    step.expression = std::make_shared<Expression>(R"(\p{N})", table.where());
    steps_.push_back(std::move(step));
  } else if (type == "Metaspace") {
    add_metaspace(table);
  } else if (type == "ByteLevel") {
    add_byte_level(table);
  } else {
    unknown_part(table, "pre_tokenizer", type);
  }
  check_steps(table, "pre_tokenizer", steps_.size());
}

void Splitter::add_split(const Json &table) {
  static const std::pair<const char *, Behavior> kBehaviors[] = {{"Isolated", Behavior::isolated},
                                                                 {"Removed", Behavior::removed},
                                                                 {"MergedWithPrevious", Behavior::with_previous},
                                                                 {"MergedWithNext", Behavior::with_next},
                                                                 {"Contiguous", Behavior::contiguous}};
  Step step;
  const std::string &behavior = table.at("behavior").string();
  const auto *found = std::find_if(std::begin(kBehaviors), std::end(kBehaviors),
                                   [&behavior](const auto &each) { return behavior == each.first; });
  if (found == std::end(kBehaviors)) unknown_part(table, "pre_tokenizer", "Split " + behavior);
  step.behavior = found->second;
  step.inverse = flag(table, "invert", false);
  if (const Json *text = table.at("pattern").find("String")) {
    step.text = text_of(*text);
    if (step.text.empty()) unknown_part(table, "pre_tokenizer", "Split by nothing");
  } else {
    step.expression = std::make_shared<Expression>(text_of(table.at("pattern").at("Regex")), table.where());
  }
  steps_.push_back(std::move(step));
}

void Splitter::add_metaspace(const Json &table) {
  Step step;
  step.splits = false;
  step.blank = character_of(table.at("replacement"));
  const Json *scheme = table.find("prepend_scheme");
  const std::string name = scheme == nullptr ? (flag(table, "add_prefix_space", true) ? "always" : "never")
                                             : scheme->string();
  if (name != "always" && name != "first" && name != "never") unknown_part(table, "pre_tokenizer", "Metaspace " + name);
  step.text = name == "never" ? "" : step.blank;
  step.first_only = name == "first";
  if (step.first_only) {
    marks_first_ = true;
    bool inserted = false;  // a mark of another Metaspace, which the library takes for a beginning of the text too
    std::string mark;
    for (const Step &each : steps_) {
      if (!each.splits) {
        inserted = inserted || !each.text.empty();
        mark = each.text;
        continue;
      }
      splits_before_first_ = true;
      if (each.behavior == Behavior::removed) unknown_part(table, "pre_tokenizer", "Metaspace first behind a Split Removed");
      // A Metaspace's own split leaves its mark with the word behind it.
      const bool leaves = each.expression == nullptr && each.behavior == Behavior::with_next && each.text == mark;
      if (inserted && !leaves) unknown_part(table, "pre_tokenizer", "Metaspace first behind another and a Split");
    }
  }
  const bool splits = flag(table, "split", true);
  const std::string blank = step.blank;
  steps_.push_back(std::move(step));
  if (!splits) return;
  Step split;
  split.behavior = Behavior::with_next;
  split.text = blank;
  steps_.push_back(std::move(split));
}

void Splitter::add_byte_level(const Json &table) {
  if (flag(table, "add_prefix_space", true)) {
    Step step;
    step.splits = false;
    step.text = " ";
    steps_.push_back(std::move(step));
  }
  if (flag(table, "use_regex", true)) {
    Step step;
    step.expression = std::make_shared<Expression>(kByteLevel, table.where());
    steps_.push_back(std::move(step));
  }
  of_bytes_ = true;
}

std::vector<Splitter::Part> Splitter::parts(const Step &step, std::string_view text) {
  std::vector<Part> found;
  std::size_t read = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t begin, end;
    if (step.expression != nullptr) {
      const auto match = step.expression->find(text, at, read);
      begin = match.begin;
      end = match.end;
    } else {
      begin = text.find(step.text, at);
      end = begin + step.text.size();
    }
    if (begin == std::string_view::npos) begin = end = text.size();
    if (begin > at) found.push_back({text.substr(at, begin - at), step.inverse});
    if (end > begin) found.push_back({text.substr(begin, end - begin), !step.inverse});
    at = end;
  }
  return found;
}

void Splitter::apply(const Step &step, std::string_view text, Place place, std::size_t before, Words &out) {
  if (!step.splits) {
    std::string whole = step.blank.empty() ? std::string(text) : replaced(text, " ", step.blank, before);
    const bool begins = whole.compare(0, step.text.size(), step.text) == 0;
    const bool wanted = place == Place::begins || (place == Place::behind && !step.first_only);
    if (!begins && wanted) whole.insert(0, step.text);
    out.made_bytes += whole.size();
    check_growth(before, out.made_bytes);
    out.made.push_back(std::move(whole));
    out.words.push_back(out.made.back());
    return;
  }
  // Parts that lie beside each other in the text become one by taking in the size of the other.
  const auto joined = [](std::string_view a, std::string_view b) {
    return std::string_view(a.data(), a.size() + b.size());
  };
  const std::vector<Part> all = parts(step, text);
  bool matched = false;  // the part before, or with `with_next` the one behind
  const std::size_t start = out.words.size();
  switch (step.behavior) {
    case Behavior::isolated:
      for (const Part &part : all) out.words.push_back(part.text);
      return;
    case Behavior::removed:
      for (const Part &part : all) {
        if (!part.matches) out.words.push_back(part.text);
      }
      return;
    case Behavior::contiguous:
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (i > 0 && all[i].matches == all[i - 1].matches) {
          out.words.back() = joined(out.words.back(), all[i].text);
        } else {
          out.words.push_back(all[i].text);
        }
      }
      return;
    case Behavior::with_previous:
      for (const Part &part : all) {
        if (part.matches && !matched && out.words.size() > start) {
          out.words.back() = joined(out.words.back(), part.text);
        } else {
          out.words.push_back(part.text);
        }
        matched = part.matches;
      }
      return;
    case Behavior::with_next:
      for (auto part = all.rbegin(); part != all.rend(); ++part) {
        if (part->matches && !matched && out.words.size() > start) {
          out.words.back() = joined(part->text, out.words.back());
        } else {
          out.words.push_back(part->text);
        }
        matched = part->matches;
      }
      std::reverse(out.words.begin() + static_cast<std::ptrdiff_t>(start), out.words.end());
      return;
  }
}

void Splitter::split(std::string_view text, Place place, Words &out) const {
  std::vector<std::string_view> before{text};
  for (const Step &step : steps_) {
    Words found;
    std::swap(found.made, out.made);  // what was made before stays where it is
    found.made_bytes = out.made_bytes;
    for (std::size_t i = 0; i < before.size(); ++i) {
      apply(step, before[i], i == 0 ? place : Place::behind, text.size(), found);
    }
    std::swap(found.made, out.made);
    out.made_bytes = found.made_bytes;
    before = std::move(found.words);
  }
  out.words.insert(out.words.end(), before.begin(), before.end());
}

}  // namespace edgekit
