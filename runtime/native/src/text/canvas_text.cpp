#include "text/canvas_text.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "text/unicode.h"
#include "utf8.h"

namespace edgekit {
namespace {

constexpr std::string_view kOpen = "\xC2\xB7", kSpecial = "\xE2\x97\xA6", kReplacement = "\xEF\xBF\xBD";

bool is_partial(std::string_view text) { return text.find(kReplacement) != std::string_view::npos; }

bool ends_within_character(std::string_view text) {
  return text.size() >= kReplacement.size() && text.substr(text.size() - kReplacement.size()) == kReplacement;
}

bool begins_white(std::string_view text) {
  std::size_t at = 0;
  return !text.empty() && is_white(next_code_point(text, at));
}

bool ends_white(std::string_view text) {
  if (text.empty()) return false;
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return is_white(next_code_point(text, at));
}

// Texts of tokens as they read inside of a sentence.
class Sentence {
 public:
  explicit Sentence(const Tokenizer &tokenizer) : tokenizer_(tokenizer) {
    // Decoders take away the space in front of the first token: a letter before it keeps that.
    for (const Tokenizer::Id id : tokenizer.encode("a", false)) ids_.assign(1, static_cast<std::int64_t>(id));
    letters_ = ids_.size();
    before_ = decode(ids_.data(), letters_);
  }

  std::string read(const std::int64_t *ids, std::size_t count) {
    ids_.resize(letters_);
    ids_.insert(ids_.end(), ids, ids + count);
    std::string text = decode(ids_.data(), ids_.size());
    if (text.compare(0, before_.size(), before_) != 0) return decode(ids, count);
    text.erase(0, before_.size());
    return text;
  }

  std::string decode(const std::int64_t *ids, std::size_t count) const { return tokenizer_.decode(ids, count, true); }

 private:
  const Tokenizer &tokenizer_;
  std::vector<std::int64_t> ids_;  // the letter's, and behind it what is read
  std::size_t letters_ = 0;
  std::string before_;
};

class Parts {
 public:
  // Text in front of which a space keeps it from what is special, or it is itself.
  void add(std::string text, bool special, std::int32_t state) {
    if (text.empty()) return;
    const std::string &all = made_.text;
    if (!all.empty() && special != special_ && !ends_white(all) && !begins_white(text)) text.insert(0, 1, ' ');
    special_ = special;
    if (made_.parts.empty() || made_.parts.back().state != state) made_.parts.push_back({0, state, 0});
    made_.parts.back().bytes += text.size();
    made_.text += text;
  }

  CanvasParts take() { return std::move(made_); }

 private:
  CanvasParts made_;
  bool special_ = false;  // what was added last
};

}  // namespace

std::vector<ek_canvas_cell> fold_event(const ek_canvas_cell *cells, std::size_t count, const ek_event &event,
                                       std::int64_t mask_token) {
  if (event.kind != EK_EVENT_DRAFT && event.kind != EK_EVENT_COMMITTED && event.kind != EK_EVENT_DONE) {
    return {cells, cells + count};
  }
  const bool committed = event.kind == EK_EVENT_COMMITTED, masked = mask_token >= 0;
  std::vector<ek_canvas_cell> made;
  std::copy_if(cells, cells + count, std::back_inserter(made), [&](const ek_canvas_cell &cell) {
    return cell.state == EK_CELL_COMMITTED && (!committed || cell.place < event.start);
  });
  if (event.kind == EK_EVENT_DONE) return made;
  const std::int64_t final = made.empty() ? 0 : made.back().place + 1, end = event.start + event.count;
  for (std::int64_t i = 0; i < event.count; ++i) {
    const std::int64_t place = event.start + i, token = event.ids[i];
    if (place < final) continue;
    std::int32_t state = masked ? token == mask_token ? EK_CELL_OPEN : EK_CELL_KEPT : EK_CELL_DRAFT;
    if (committed) {
      state = EK_CELL_COMMITTED;
    } else if (event.accepted[i] != 0) {
      state = EK_CELL_ACCEPTED;
    }
    made.push_back({place, token, state, 0});
  }
  if (committed && masked) {
    std::copy_if(cells, cells + count, std::back_inserter(made),
                 [&](const ek_canvas_cell &cell) { return cell.state != EK_CELL_COMMITTED && cell.place >= end; });
  }
  return made;
}

CanvasParts draw_cells(const Tokenizer &tokenizer, const ek_canvas_cell *cells, std::size_t count) {
  Sentence sentence(tokenizer);
  std::vector<std::int64_t> ids(count);
  std::transform(cells, cells + count, ids.begin(), [](const ek_canvas_cell &cell) { return cell.token; });
  const auto is_open = [&](std::size_t at) { return cells[at].state == EK_CELL_OPEN; };
  const auto read = [&](std::size_t at) { return is_open(at) ? std::string(kOpen) : sentence.read(&ids[at], 1); };

  const auto is_final = [](const ek_canvas_cell &cell) { return cell.state == EK_CELL_COMMITTED; };
  auto at = static_cast<std::size_t>(std::find_if_not(cells, cells + count, is_final) - cells);
  std::string next = at < count ? read(at) : std::string(), text = sentence.decode(ids.data(), at);
  if (ends_within_character(text) && at < count && !is_open(at) && is_partial(next)) {
    for (std::string before; at > 0 && is_partial(before = read(at - 1)); --at) next = std::move(before);
    text = sentence.decode(ids.data(), at);
  }
  Parts parts;
  parts.add(std::move(text), false, EK_CELL_COMMITTED);
  while (at < count) {
    const std::size_t begin = at++;
    const bool partial = !is_open(begin) && is_partial(next);
    std::int32_t state = cells[begin].state;
    text = std::move(next);
    for (next.clear(); at < count; ++at) {
      next = read(at);
      if (!partial || is_open(at) || !is_partial(next)) break;
      state = std::min(state, cells[at].state);
    }
    const bool special = text.empty();
    if (begin == 0 && cells[0].place == 0 && !is_open(0)) {
      text = sentence.decode(ids.data(), at);  // perhaps empty: of a space
    } else if (at > begin + 1) {
      text = sentence.read(&ids[begin], at - begin);
    }
    parts.add(special ? std::string(kSpecial) : std::move(text), special, state);
  }
  return parts.take();
}

}  // namespace edgekit
