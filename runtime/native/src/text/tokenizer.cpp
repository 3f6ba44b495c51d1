#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "error.h"
#include "text/tables.h"
#include "utf8.h"

namespace edgekit {

Tokenizer::Id Tokenizer::find(std::string_view token) const {
  const auto added = added_ids_.find(token);
  if (added != added_ids_.end()) return added->second;
  return texts().find(token);
}

std::size_t Tokenizer::count() const {
  const auto is_new = [this](const auto &added) { return texts().find(added.first) == Vocabulary::kNone; };
  return texts().count() + static_cast<std::size_t>(std::count_if(added_ids_.begin(), added_ids_.end(), is_new));
}

std::vector<Tokenizer::Id> Tokenizer::encode(std::string_view text, bool add_special) const {
  std::vector<Id> out;
  if (add_special) out = before_;
  encode_parts(text, Place::begins, out);
  if (add_special) out.insert(out.end(), behind_.begin(), behind_.end());
  return out;
}

std::vector<Tokenizer::Id> Tokenizer::encode_behind(std::string_view text) const {
  std::vector<Id> out;
  encode_parts(text, Place::goes_on, out);
  return out;
}

void Tokenizer::encode_parts(std::string_view text, Place place, std::vector<Id> &out) const {
  const std::size_t good = utf8_prefix(text);
  if (good != text.size()) {
    fail(EK_INVALID_ARGUMENT, "the text is not UTF-8 at byte ", good, "; give it so encoded");
  }
  std::size_t made = 0;  // bytes, for all parts together: each may grow a little, whatever its length
  for (const auto &part : plain_.split(text)) {
    if (part.id != Vocabulary::kNone) {
      out.push_back(part.id);
    } else {
      const std::string normal = normalizer_.apply(part.text, place);
      made += normal.size();
      for (const auto &inner : normalized_.split(normal)) {
        if (inner.id != Vocabulary::kNone) {
          out.push_back(inner.id);
        } else {
          made += encode_part(inner.text, place, out);
        }
        check_growth(text.size(), made);
        place = Place::behind;
      }
    }
    place = Place::behind;
  }
}

std::size_t Tokenizer::encode_part(std::string_view text, Place place, std::vector<Id> &out) const {
  Splitter::Words words;
  splitter_.split(text, place, words);
  for (const std::string_view word : words.words) bpe_->encode(word, out);
  return words.made_bytes;
}

std::string Tokenizer::decode(const std::int64_t *ids, std::size_t count, bool skip_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Piece found = piece(ids[i], skip_special);
    if (found.there) tokens.emplace_back(found.text);
  }
  return decoder_.decode(std::move(tokens));
}

Tokenizer::Piece Tokenizer::piece(std::int64_t id, bool skip_special) const {
  if (id < 0 || id >= static_cast<std::int64_t>(Vocabulary::kNone)) return {};
  const auto added = added_.find(static_cast<Id>(id));
  if (added != added_.end()) return {!added->second.special || !skip_special, added->second.text};
  if (!texts().has(static_cast<Id>(id))) return {};
  return {true, texts().text(static_cast<Id>(id))};
}

}  // namespace edgekit
