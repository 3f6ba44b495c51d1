// tokenizer.json, as the `tokenizers` library writes it.
#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "error.h"
#include "json.h"
#include "text/tables.h"
#include "text/tokenizer.h"

namespace edgekit {

class TokenizerReader {
 public:
  TokenizerReader(std::string_view text, const std::string &where, Tokenizer &out)
      : cursor_(text, where), where_(where), out_(out) {
    if (text.size() > Tokenizer::kMostFileBytes) malformed("is larger than any tokenizer");
  }

  void read() {
    std::string name;
    cursor_.enter_object();
    while (cursor_.next_member(name)) {
      if (name == "model") {
        if (model_) malformed("has two models");
        read_model();
      } else if (name == "normalizer") {
        once(normalizer_, name);
      } else if (name == "pre_tokenizer") {
        once(pre_tokenizer_, name);
      } else if (name == "post_processor") {
        once(post_processor_, name);
      } else if (name == "decoder") {
        once(decoder_, name);
      } else if (name == "added_tokens") {
        once(added_, name);
      } else {
        cursor_.read();  // version, truncation, padding
      }
    }
    cursor_.end();
    if (!model_) malformed("has no model");
    if (normalizer_) out_.normalizer_ = Normalizer(*normalizer_);
    if (pre_tokenizer_) out_.splitter_ = Splitter(*pre_tokenizer_);
    check_first();
    if (decoder_) out_.decoder_ = Decoder(*decoder_);
    build_model();
    if (added_) add_tokens();
    if (post_processor_ && !post_processor_->is_null()) surround(*post_processor_);
  }

 private:
  using Id = Tokenizer::Id;

  [[noreturn]] void malformed(const std::string &what) const {
    fail(EK_MALFORMED_FILE, where_, ": ", what, "; download it again");
  }

  // The library asks whether a part begins the text as it was before the normalizer changed it.
  void check_first() const {
    const Normalizer &normalizer = out_.normalizer_;
    if (!out_.splitter_.marks_first()) return;
    if (!normalizer.only_composes() || (!normalizer.empty() && out_.splitter_.splits_before_first())) {
      unknown_part(*pre_tokenizer_, "pre_tokenizer", "Metaspace first behind a normalizer that moves characters");
    }
  }

  void once(std::optional<Json> &part, const std::string &name) {
    if (part) malformed("has two parts called " + name);
    part = cursor_.read();
  }

  void check_token(const std::string &text) const {
    if (utf8_prefix(text) != text.size()) malformed("has half a surrogate pair in a token");
    if (text.size() > kMostTokenBytes) malformed("has a token of " + std::to_string(text.size()) + " bytes");
  }

  // --- the model ------------------------------------------------------------------------------------------------------

  void read_model() {
    model_.emplace();
    static constexpr std::string_view kOthers[] = {"type", "dropout", "unk_token", "continuing_subword_prefix",
                                                   "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges"};
    std::string name;
    bool has_vocabulary = false, has_merges = false;
    cursor_.enter_object();
    while (cursor_.next_member(name)) {
      if (name == "vocab") {
        if (has_vocabulary || !cursor_.at_object()) malformed("has no single vocabulary of tokens with ids");
        has_vocabulary = true;
        read_vocabulary();
      } else if (name == "merges") {
        if (has_merges) malformed("has two lists of merges");
        has_merges = true;
        read_merges();
      } else if (std::find(std::begin(kOthers), std::end(kOthers), name) == std::end(kOthers)) {
        cursor_.read();
      } else {
        const auto same = [&name](const auto &member) { return member.first == name; };
        if (std::any_of(model_->begin(), model_->end(), same)) malformed("has two parts called " + name + " in its model");
        model_->emplace_back(name, cursor_.read());
      }
    }
    if (!has_vocabulary) malformed("has no vocabulary");
  }

  const Json *find(std::string_view name) const {
    for (const auto &[key, value] : *model_) {
      if (key == name && !value.is_null()) return &value;
    }
    return nullptr;
  }

  bool model_flag(std::string_view name) const {
    const Json *found = find(name);
    return found != nullptr && found->boolean();
  }

  void read_vocabulary() {
    std::string token;
    cursor_.enter_object();
    while (cursor_.next_member(token)) {
      check_token(token);
      const std::int64_t id = cursor_.read_integer();
      if (id < 0 || id >= std::int64_t{Vocabulary::kMostIds} || !texts_.put(static_cast<Id>(id), token)) {
        malformed("the token " + in_quotes(token) + " has the id " + std::to_string(id) +
                  ", which is another token's, or more than any vocabulary has");
      }
    }
  }

  // Both tokens of each, a blank between them, or as a list of two.
  void read_merges() {
    std::string left, right;
    cursor_.enter_array();
    while (cursor_.next_item()) {
      if (cursor_.at_array()) {
        cursor_.enter_array();
        if (!cursor_.next_item()) malformed("has a merge of nothing");
        cursor_.read_string(left);
        if (!cursor_.next_item()) malformed("has a merge of one token");
        cursor_.read_string(right);
        if (cursor_.next_item()) malformed("has a merge of three tokens");
      } else {
        cursor_.read_string(right);
        const std::size_t blank = right.find(' ');
        if (blank == std::string::npos || right.find(' ', blank + 1) != std::string::npos) {
          malformed("has the merge " + in_quotes(right) + ", which is not two tokens with a blank between them");
        }
        left = right.substr(0, blank);
        right.erase(0, blank + 1);
      }
      check_token(left);
      check_token(right);
      if (merge_ends_.size() >= 2 * std::size_t{Vocabulary::kMostIds}) malformed("has more merges than any vocabulary");
      merges_ += left;
      merge_ends_.push_back(merges_.size());
      merges_ += right;
      merge_ends_.push_back(merges_.size());
    }
  }

  void build_model() {
    if (const Json *type = find("type"); type != nullptr && type->string() != "BPE") {
      unknown_part(*type, "model", type->string());
    }
    for (const char *name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json *found = find(name);
      if (found != nullptr && !found->string().empty()) unknown_part(*found, "model", name);
    }
    if (const Json *dropout = find("dropout"); dropout != nullptr && dropout->number() != 0) {
      unknown_part(*dropout, "model", "BPE with dropout");
    }
    if (!texts_.settle()) malformed("has two ids for one token");
    const bool of_bytes = out_.splitter_.of_bytes();
    Vocabulary words = of_bytes ? of_their_bytes() : texts_;
    if (!words.settle()) malformed("has two tokens of the same bytes");
    Bpe::Unknown unknown;
    if (const Json *token = find("unk_token")) {
      unknown.id = texts_.find(token->string());
      if (unknown.id == Vocabulary::kNone) malformed("its unk_token " + in_quotes(token->string()) + " is no token");
    }
    unknown.fused = model_flag("fuse_unk");
    unknown.bytes = model_flag("byte_fallback");
    auto bpe = std::make_unique<Bpe>(std::move(words), of_bytes, model_flag("ignore_merges"), unknown,
                                     merge_ends_.size() / 2);
    if (of_bytes && unknown.bytes && !bpe->has_all_bytes() && has_byte_token()) {
      unknown_part(*find("byte_fallback"), "model", "BPE with byte_fallback behind ByteLevel");
    }
    add_merges(*bpe);
    out_.bpe_ = std::move(bpe);
    if (of_bytes) out_.texts_ = std::move(texts_);
  }

  bool has_byte_token() const {
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (texts_.find(byte_token(byte)) != Vocabulary::kNone) return true;
    }
    return false;
  }

  // Tokens that no bytes of a text are found as have no place in it.
  Vocabulary of_their_bytes() const {
    Vocabulary found;
    std::string bytes;
    for (Id id = 0; id < texts_.size(); ++id) {
      if (texts_.has(id) && bytes_of_token(texts_.text(id), bytes)) found.put(id, bytes);
    }
    return found;
  }

  void add_merges(Bpe &bpe) {
    std::size_t begin = 0;
    std::string whole;
    const std::string_view all = merges_;
    for (std::size_t i = 0; i + 1 < merge_ends_.size(); i += 2) {
      const std::string_view left = all.substr(begin, merge_ends_[i] - begin);
      const std::string_view right = all.substr(merge_ends_[i], merge_ends_[i + 1] - merge_ends_[i]);
      begin = merge_ends_[i + 1];
      whole = left;
      whole += right;
      Id ids[3];
      const std::string_view names[] = {left, right, whole};
      for (int each = 0; each < 3; ++each) {
        ids[each] = texts_.find(names[each]);
        if (ids[each] == Vocabulary::kNone) {
          malformed("merges " + in_quotes(left) + " and " + in_quotes(right) + ", and " + in_quotes(names[each]) +
                    " is no token");
        }
      }
      if (!bpe.add_merge(ids[0], ids[1], ids[2])) {
        malformed("merges " + in_quotes(left) + " and " + in_quotes(right) + " twice");
      }
    }
    merges_ = std::string();
    merge_ends_ = {};
  }

  // --- what stands around it ------------------------------------------------------------------------------------------

  void add_tokens() {
    const auto count = static_cast<Id>(out_.texts().count());
    std::optional<Id> most;  // of the ids that were given to tokens here
    std::set<std::string> special_texts;
    for (const Json &table : added_->array()) {
      const std::string &text = text_of(table.at("content"));
      if (flag(table, "single_word", false)) unknown_part(table, "added token", text + " as a single word");
      if (text.empty() || out_.added_ids_.count(text) != 0) continue;
      Id id = out_.find(text);
      if (id == Vocabulary::kNone) id = most && *most >= count ? *most + 1 : count;
      if (id >= Vocabulary::kMostIds) malformed("has more tokens than any vocabulary");
      most = most ? std::max(*most, id) : id;
      const bool special = flag(table, "special", false), normalized = flag(table, "normalized", !special);
      const std::string found_as = normalized ? out_.normalizer_.apply(text) : text;
      out_.added_[id] = {found_as, special};
      if (special) special_texts.insert(text);
      out_.added_ids_[text] = id;
      (normalized ? out_.normalized_ : out_.plain_)
          .add(found_as, id, flag(table, "lstrip", false), flag(table, "rstrip", false));
    }
    // The library leaves out what is spelled as a special token, which one that the normalizer changes is not.
    for (auto &[id, added] : out_.added_) added.special = special_texts.count(added.text) != 0;
  }

  void surround(const Json &table) {
    const std::string &type = type_of(table);
    if (type == "Sequence") {
      for (const Json &each : table.at("processors").array()) surround(each);
    } else if (type == "TemplateProcessing") {
      if (surrounded_) unknown_part(table, "post_processor", "a second TemplateProcessing");
      surrounded_ = true;
      bool behind = false;
      std::vector<Id> before, after;
      const Json::Array &pieces = table.at("single").array();
      if (pieces.size() > kMostAround) malformed("puts more tokens around texts than any tokenizer");
      for (const Json &piece : pieces) {
        if (piece.find("Sequence") != nullptr) {
          if (behind) unknown_part(table, "post_processor", "TemplateProcessing that repeats the text");
          behind = true;
          continue;
        }
        const std::string &name = piece.at("SpecialToken").at("id").string();
        for (const Json &id : table.at("special_tokens").at(name).at("ids").array()) {
          const std::int64_t value = id.integer();
          if (value < 0 || value >= std::int64_t{Vocabulary::kMostIds}) malformed("puts a token around texts that is none");
          (behind ? after : before).push_back(static_cast<Id>(value));
        }
      }
      if (!behind) unknown_part(table, "post_processor", "TemplateProcessing without the text");
      out_.before_ = std::move(before);
      out_.behind_ = std::move(after);
      if (out_.before_.size() + out_.behind_.size() > kMostAround) malformed("puts more tokens around texts than any tokenizer");
    } else if (type != "ByteLevel") {
      unknown_part(table, "post_processor", type);
    }
  }

  static constexpr std::size_t kMostAround = 64;  // published ones put two or three

  JsonCursor cursor_;
  std::string where_;
  Tokenizer &out_;
  std::optional<Json> normalizer_, pre_tokenizer_, post_processor_, decoder_, added_;
  std::optional<std::vector<std::pair<std::string, Json>>> model_;  // its members but the vocabulary and merges
  bool surrounded_ = false;  // a TemplateProcessing was read
  Vocabulary texts_;
  std::string merges_;                   // all tokens of all merges
  std::vector<std::size_t> merge_ends_;  // in it, of each token
};

Tokenizer::Tokenizer(std::string_view text, const std::string &where) {
  TokenizerReader(text, where, *this).read();
}

}  // namespace edgekit
