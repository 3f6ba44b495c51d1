// Fuzz target of tokenizer.json and chat.json. Whatever they say, they are refused in one line, or make of texts ids, of ids
// texts and of conversations texts, all of UTF-8.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "error.h"
#include "fuzz_target.h"
#include "text/canvas_text.h"
#include "text/chat_form.h"
#include "text/text_stream.h"
#include "text/tokenizer.h"
#include "utf8.h"

namespace {

using edgekit::ChatForm;
using edgekit::TextStream;
using edgekit::Tokenizer;

// Whether `function` was served, or refused for what is in the file.
template <typename Function>
bool served(Function function) {
  try {
    function();
    return true;
  } catch (const edgekit::Error &error) {
    edgekit_testing::require_one_line(error.what());
    EK_REQUIRE(error.status() == EK_MALFORMED_FILE || error.status() == EK_UNSUPPORTED_BUNDLE);
    return false;
  }
}

void require_text(std::string_view text) { EK_REQUIRE(edgekit::utf8_prefix(text) == text.size()); }

// The pieces of ids that come `step` at a time; false where they are refused.
bool streamed(const Tokenizer &tokenizer, const std::vector<std::int64_t> &ids, std::size_t step, bool skip_special,
              std::string &out) {
  TextStream stream(tokenizer, skip_special);
  out.clear();
  const auto take = [&] {
    require_text(stream.certain());
    while (!stream.certain().empty()) {  // by no more than a character
      const std::string_view part = stream.first(4);
      EK_REQUIRE(!part.empty());
      out += part;
      stream.take(part.size());
    }
  };
  return served([&] {
    for (std::size_t at = 0; at < ids.size(); at += step) {
      stream.push(ids.data() + at, std::min(step, ids.size() - at));
      take();
    }
    stream.finish();
    take();
  });
}

// Ids as a canvas, the first `final` of them committed, and others in every state.
void draw(const Tokenizer &tokenizer, const std::vector<std::int64_t> &ids, std::size_t final) {
  std::vector<ek_canvas_cell> cells;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto place = static_cast<std::int64_t>(i);
    cells.push_back({place, ids[i], i < final ? EK_CELL_COMMITTED : static_cast<std::int32_t>(i / 2 % 4), 0});
  }
  served([&] {
    const edgekit::CanvasParts made = edgekit::draw_cells(tokenizer, cells.data(), cells.size());
    EK_REQUIRE(made.parts.size() <= cells.size());
    std::string_view rest = made.text;
    for (const ek_canvas_part &part : made.parts) {
      EK_REQUIRE(part.bytes > 0 && part.bytes <= rest.size());
      require_text(rest.substr(0, static_cast<std::size_t>(part.bytes)));
      rest.remove_prefix(static_cast<std::size_t>(part.bytes));
    }
    EK_REQUIRE(rest.empty());
  });
}

void decode(const Tokenizer &tokenizer, const std::vector<std::int64_t> &ids) {
  for (const bool skip_special : {true, false}) {
    std::string whole, pieces;
    const bool together = served([&] { whole = tokenizer.decode(ids.data(), ids.size(), skip_special); });
    require_text(whole);
    for (const std::size_t step : {std::size_t{1}, std::size_t{3}}) {
      const bool apart = streamed(tokenizer, ids, step, skip_special, pieces);
      EK_REQUIRE(!together || !apart || ids.size() > TextStream::kMostHeldBytes || pieces == whole);
    }
  }
  for (std::size_t final = 0; final <= ids.size(); final += 1 + ids.size() / 3) draw(tokenizer, ids, final);
}

void use(const Tokenizer &tokenizer) {
  EK_REQUIRE(tokenizer.count() <= 2 * std::size_t{edgekit::Vocabulary::kMostIds});
  const char *const kTexts[] = {"",
                                "a",
                                " ab  ba\n\n\t12 345  ",
                                "Hello, WORLD's \xC3\xA9t\xC3\xA9 e\xCC\x81\xCC\xA7 \xE2\x96\x81 \xF0\x9F\xA6\x8A\xEF\xBF\xBD",
                                "<s>ab</s><|end|> <|end|>er  two  <0x0A>",
                                "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa                                b"};
  for (const char *text : kTexts) {
    for (const bool behind : {false, true}) {
      std::vector<Tokenizer::Id> found;
      if (!served([&] { found = behind ? tokenizer.encode_behind(text) : tokenizer.encode(text, true); })) continue;
      std::vector<std::int64_t> ids;
      for (const Tokenizer::Id id : found) {
        EK_REQUIRE(id < edgekit::Vocabulary::kMostIds);
        ids.push_back(id);
      }
      decode(tokenizer, ids);
    }
  }
  std::vector<std::int64_t> ids;
  for (std::int64_t id = -1; id < 40; ++id) ids.push_back(id * 7 % 31);
  decode(tokenizer, ids);
}

void use(const ChatForm &form) {
  for (std::size_t count = 1; count <= 3; count += 2) {
    std::vector<edgekit::ChatMessage> messages{{"user", " a \n"}, {"assistant", "x</think>\n\nb"}, {"user", ""}};
    messages.resize(count);
    require_text(form.apply(messages));
  }
}

// With every part that the core knows, and both kinds of byte pair encoding.
const char *const kBytes =
    R"({"version": "1.0", "truncation": null, "added_tokens": [{"id": 9, "content": "<|end|>", "single_word": false, )"
    R"("lstrip": true, "rstrip": true, "normalized": false, "special": true}, {"content": "two", "normalized": true}], )"
    R"("normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", )"
    R"("individual_digits": true}, {"type": "Split", "pattern": {"Regex": "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+)"
    R"(|\\p{N}{1,3}| ?[^\\s\\p{L}&&[^a-c]]+[\\r\\n]*?|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": false}, )"
    R"({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}]}, "post_processor": {"type": "Sequence", )"
    R"("processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, )"
    R"({"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [4]}}}]}, "decoder": {"type": "ByteLevel"}, )"
    R"("model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false, "byte_fallback": false, )"
    R"("ignore_merges": true, "vocab": {"a": 0, "b": 1, "ab": 2, "\u0120": 3, "<s>": 4, "\u00c3": 5, "\u00a9": 6, )"
    R"("\u0120ab": 7, "\u010a": 8}, "merges": ["a b", ["\u0120", "ab"]]}})";

const char *const kCharacters =
    R"({"added_tokens": [{"content": "<s>", "special": true}, {"content": "  two  ", "rstrip": true}], "normalizer": )"
    R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"}, {"type": "Replace", "pattern": )"
    R"({"String": " "}, "content": "_"}]}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Metaspace", )"
    R"("replacement": "_", "prepend_scheme": "first", "split": true}, {"type": "Split", "pattern": {"String": "b"}, )"
    R"("behavior": "MergedWithPrevious", "invert": true}]}, "post_processor": null, "decoder": {"type": "Sequence", )"
    R"("decoders": [{"type": "Replace", "pattern": {"String": "_"}, "content": " "}, {"type": "ByteFallback"}, )"
    R"({"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}, "model": {"type": "BPE", )"
    R"("unk_token": "u", "fuse_unk": true, "byte_fallback": true, "vocab": {"a": 0, "b": 1, "ab": 2, "_": 3, "u": 4, )"
    R"("<0xC3>": 5, "<0xA9>": 6, "<0x0A>": 7, "_a": 8, "<s>": 30}, "merges": ["a b", "_ a"]}})";

const char *const kMetaspace =
    R"({"decoder": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"}, "pre_tokenizer": {"type": "Split", )"
    R"("pattern": {"Regex": "a*?b|[^a]+"}, "behavior": "Contiguous"}, "model": {"vocab": {"a": 0, "_b": 1, "b": 2}}})";

const char *const kChat =
    R"({"version": 1, "begin": "<s>user\n", "system": {"before": "<s>", "after": "\n", "trim": true, "last": false}, )"
    R"("reply": "</s>", "next": "<s>user\n", "answer": "</s>model\n", "trim_user": true, "trim_assistant": true, )"
    R"("thought": "</think>"})";

}  // namespace

// The first byte chooses: 0 a tokenizer.json, 1 a chat.json.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char *>(data) + 1, size - 1);
  served([&] {
    if (data[0] % 2 == 0) {
      use(Tokenizer(text, "t"));
    } else {
      use(ChatForm(text, "c"));
    }
  });
  return 0;
}

std::vector<std::string> edgekit_testing::fuzz_seeds() {
  std::vector<std::string> seeds;
  for (const char *text : {kBytes, kCharacters, kMetaspace}) seeds.push_back(std::string(1, '\0') + text);
  seeds.push_back(std::string(1, '\1') + kChat);
  return seeds;
}
