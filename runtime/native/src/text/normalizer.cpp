#include "text/normalizer.h"

#include <algorithm>

#include "text/tables.h"
#include "text/unicode.h"

namespace edgekit {

std::string replaced(std::string_view text, std::string_view what, std::string_view by, std::size_t before) {
  std::string out;
  for (std::size_t at = 0;;) {
    const std::size_t found = text.find(what, at);
    out.append(text.substr(at, found - at));  // npos - at is more than is left
    if (found == std::string_view::npos) return out;
    out.append(by);
    check_growth(before, out.size());
    at = found + what.size();
  }
}

Replacement::Replacement(const Json &table, const char *part) {
  const Json *text = table.at("pattern").find("String");
  if (text == nullptr) unknown_part(table, part, "Replace of an expression");
  what = text_of(*text);
  if (what.empty()) unknown_part(table, part, "Replace of nothing");
  by = text_of(table.at("content"));
}

Normalizer::Normalizer(const Json &table) {
  if (!table.is_null()) add(table);
}

void Normalizer::add(const Json &table) {
  const std::string &type = type_of(table);
  if (type == "Sequence") {
    for (const Json &each : table.at("normalizers").array()) add(each);
  } else if (type == "NFC") {
    steps_.push_back({Step::Kind::compose, "", ""});
  } else if (type == "Prepend") {
    steps_.push_back({Step::Kind::prepend, "", text_of(table.at("prepend"))});
  } else if (type == "Replace") {
    const Replacement found(table, "normalizer");
    steps_.push_back({Step::Kind::replace, found.what, found.by});
  } else {
    unknown_part(table, "normalizer", type);
  }
  check_steps(table, "normalizer", steps_.size());
}

bool Normalizer::only_composes() const noexcept {
  return std::all_of(steps_.begin(), steps_.end(), [](const Step &step) { return step.kind == Step::Kind::compose; });
}

std::string Normalizer::apply(std::string_view text, Place place) const {
  std::string out(text);
  for (const Step &step : steps_) {
    switch (step.kind) {
      case Step::Kind::compose:
        out = composed(out);
        break;
      case Step::Kind::prepend:
        if (!out.empty() && place != Place::goes_on) out.insert(0, step.by);
        break;
      case Step::Kind::replace:
        out = replaced(out, step.what, step.by, text.size());
        break;
    }
    check_growth(text.size(), out.size());
  }
  return out;
}

}  // namespace edgekit
