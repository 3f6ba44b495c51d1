#include "sampling/drafts.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "sampling/roles.h"

namespace edgekit {
namespace {

bool equal(float a, float b) { return !(a < b) && !(b < a); }

bool same(const std::optional<GumbelDraw> &a, const std::optional<GumbelDraw> &b) {
  if (!a || !b) return a.has_value() == b.has_value();
  return a->seed == b->seed && a->draw == b->draw && equal(a->scale, b->scale);
}

// Whether both ask the same of each row, whatever the noise.
bool alike(const HeadRequest &a, const HeadRequest &b) {
  return equal(a.temperature, b.temperature) && a.gumbel.has_value() == b.gumbel.has_value() && a.soft == b.soft &&
         a.top_k == b.top_k && a.logits == b.logits && a.roles == b.roles;
}

bool same(const std::optional<std::vector<SeenRows>> &a, const std::optional<std::vector<SeenRows>> &b) {
  if (!a || !b) return a.has_value() == b.has_value();
  return std::equal(a->begin(), a->end(), b->begin(), b->end(), [](const SeenRows &x, const SeenRows &y) {
    return x.segment == y.segment && x.first == y.first && x.count == y.count;
  });
}

// Whether the answer to one is that to the other.
bool same(const AskSegment &a, const AskSegment &b) {
  return a.ids == b.ids && a.at == b.at && a.positions == b.positions && a.block == b.block && same(a.seen, b.seen) &&
         a.adapter == b.adapter && alike(*a.request, *b.request) && a.request->all_rows == b.request->all_rows &&
         a.request->rows == b.request->rows && same(a.request->gumbel, b.request->gumbel);
}

// Some rows of an array that has `width` values for each, or none at all.
template <typename Value>
std::vector<Value> rows_of(const std::vector<Value> &values, const std::vector<std::size_t> &rows, std::size_t width = 1) {
  std::vector<Value> out;
  if (values.empty()) return out;
  for (const std::size_t row : rows) {
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(row * width);
    out.insert(out.end(), first, first + static_cast<std::ptrdiff_t>(width));
  }
  return out;
}

}  // namespace

std::optional<AskSegment> step_of(const Ask &ask) {
  if (ask.kind == AskKind::denoise && ask.soft.empty()) {
    AskSegment step;
    step.ids = ask.ids;
    step.at = ask.prefix_length;
    step.request = ask.request;
    return step;
  }
  if (ask.kind != AskKind::pass || ask.segments.size() != 1) return std::nullopt;
  const AskSegment &only = ask.segments.front();
  return only.keep || !only.request ? std::nullopt : std::optional<AskSegment>(only);
}

void Drafts::predict(const AskSegment &step, const HeadResult &answer) {
  last_ = step;
  predicted_ = answer;
}

std::optional<HeadResult> Drafts::guess(const AskSegment &step) const {
  if (!last_) return std::nullopt;
  const HeadRequest &asked = *step.request, &had = *last_->request;
  if (asked.all_rows || had.all_rows || asked.logits || asked.soft || !alike(asked, had)) return std::nullopt;
  std::vector<std::size_t> rows;
  for (const std::int64_t row : asked.rows) {
    // A step may compute a part of what the one before it did.
    const auto found = std::find(had.rows.begin(), had.rows.end(), row + step.at - last_->at);
    if (found == had.rows.end()) return std::nullopt;
    rows.push_back(static_cast<std::size_t>(found - had.rows.begin()));
  }
  const auto width = static_cast<std::size_t>(had.top_k);
  HeadResult guess;
  guess.argmax = rows_of(predicted_.argmax, rows);
  guess.others = rows_of(predicted_.others, rows);
  guess.entropy = rows_of(predicted_.entropy, rows);
  guess.log_z = rows_of(predicted_.log_z, rows);
  guess.sample = rows_of(predicted_.sample, rows);
  guess.sample_prob = rows_of(predicted_.sample_prob, rows);
  guess.top_ids = rows_of(predicted_.top_ids, rows, width);
  guess.top_z = rows_of(predicted_.top_z, rows, width);
  guess.roles = rows_of(predicted_.roles, rows, static_cast<std::size_t>(kRoles));
  return guess;
}

void Drafts::verify(std::vector<HeadResult> answers) { answers_ = std::move(answers); }

std::optional<HeadResult> Drafts::take(const AskSegment &step) {
  for (std::size_t i = 0; i < answers_.size(); ++i) {
    if (!same(asked_[i], step)) continue;
    HeadResult answer = std::move(answers_[i]);
    const auto behind = static_cast<std::ptrdiff_t>(i + 1);
    asked_.erase(asked_.begin(), asked_.begin() + behind);
    answers_.erase(answers_.begin(), answers_.begin() + behind);
    return answer;
  }
  asked_.clear();
  answers_.clear();
  return std::nullopt;
}

}  // namespace edgekit
