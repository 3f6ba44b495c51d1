#include "text/tokenizer.h"

#include <utility>

#include "error.h"
#include "text/tables.h"
#include "utf8.h"

namespace edgekit {

Tokenizer::Id Tokenizer::find(std::string_view token) const {
  const auto added = added_ids_.find(token);
  if (added != added_ids_.end()) return added->second;
  return splitter_.of_bytes() ? texts_.find(token) : bpe_->vocabulary().find(token);
}

std::vector<Tokenizer::Id> Tokenizer::encode(std::string_view text, bool add_special) const {
  const std::size_t good = utf8_prefix(text);
  if (good != text.size()) {
    fail(EK_INVALID_ARGUMENT, "the text is not UTF-8 at byte ", good, "; give it so encoded");
  }
  std::vector<Id> out;
  if (add_special) out = before_;
  bool first = true;
  std::size_t made = 0;  // bytes, for all parts together: each may grow a little, whatever its length
  for (const auto &part : plain_.split(text)) {
    if (part.id != Vocabulary::kNone) {
      out.push_back(part.id);
    } else {
      const std::string normal = normalizer_.apply(part.text);
      made += normal.size();
      for (const auto &inner : normalized_.split(normal)) {
        if (inner.id != Vocabulary::kNone) {
          out.push_back(inner.id);
        } else {
          made += encode_part(inner.text, first, out);
        }
        check_growth(text.size(), made);
        first = false;
      }
    }
    first = false;
  }
  if (add_special) out.insert(out.end(), behind_.begin(), behind_.end());
  return out;
}

std::size_t Tokenizer::encode_part(std::string_view text, bool first, std::vector<Id> &out) const {
  Splitter::Words words;
  splitter_.split(text, first, words);
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
  const Vocabulary &texts = splitter_.of_bytes() ? texts_ : bpe_->vocabulary();
  if (!texts.has(static_cast<Id>(id))) return {};
  return {true, texts.text(static_cast<Id>(id))};
}

}  // namespace edgekit
