// The ek_text_ functions of edgekit.h.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "abi_guard.h"
#include "abi_text.h"
#include "bundle_folder.h"
#include "edgekit.h"
#include "error.h"
#include "text/text_stream.h"

using namespace edgekit;

struct ek_text_stream {
  ek_text_stream(const Tokenizer &tokenizer, bool skip_special) : stream(tokenizer, skip_special) {}
  TextStream stream;
};

namespace {

// Those of the tokenizer have a folder of their own, or are in the bundle's.
constexpr char kFolder[] = "tokenizer/", kFile[] = "tokenizer.json", kChatFile[] = "chat.json";

std::string read(const BundleFolder &folder, const std::string &name) {
  std::string text(folder.size_of(name), '\0');
  folder.read(name, text.data());
  return text;
}

// Throws Error (EK_INVALID_ARGUMENT) for null.
TextStream &opened(ek_text_stream *stream) {
  if (stream == nullptr) fail(EK_INVALID_ARGUMENT, "the stream is null; open it with ek_text_stream_open");
  return stream->stream;
}

void check_ids(const int64_t *ids, int64_t count) {
  if (count < 0 || (ids == nullptr && count != 0)) fail(EK_INVALID_ARGUMENT, "ids are null, or count is ", count);
}

// Gives the ids that `encode` makes of a text.
template <typename Encode>
void give_ids(const char *utf8, uint64_t bytes, int64_t *ids, int64_t capacity, int64_t *count, Encode encode) {
  if (utf8 == nullptr && bytes != 0) fail(EK_INVALID_ARGUMENT, "utf8 is null, and has ", bytes, " bytes");
  if (bytes > EK_TEXT_MOST) fail(EK_INVALID_ARGUMENT, "a text of ", bytes, " bytes; it can have ", EK_TEXT_MOST);
  place(count, "count");
  const std::vector<Tokenizer::Id> found = encode({utf8 == nullptr ? "" : utf8, static_cast<std::size_t>(bytes)});
  *count = static_cast<int64_t>(found.size());
  if (ids == nullptr) return;
  if (capacity < *count) fail(EK_BUFFER_TOO_SMALL, "the text has ", *count, " ids, the buffer ", capacity);
  std::copy(found.begin(), found.end(), ids);
}

}  // namespace

ek_status ek_text_open(const char *bundle, ek_text **text) noexcept {
  return guarded([&] {
    *place(text, "text") = nullptr;
    const BundleFolder folder{std::string(place(bundle, "the path of the bundle"))};
    const std::string place_of = folder.lists(kFile) ? "" : kFolder;
    auto found = std::make_unique<ek_text>(read(folder, place_of + kFile), place_of + kFile);
    const std::string chat = place_of + kChatFile;
    if (folder.lists(chat)) found->chat.emplace(read(folder, chat), chat);
    *text = found.release();
  });
}

ek_status ek_text_open_json(const char *json, uint64_t bytes, ek_text **text) noexcept {
  return guarded([&] {
    *place(text, "text") = nullptr;
    *text = new ek_text({place(json, "json"), static_cast<std::size_t>(bytes)}, "tokenizer.json");
  });
}

void ek_text_close(ek_text *text) noexcept { delete text; }

ek_status ek_text_find(ek_text *text, const char *token, int64_t *id) noexcept {
  return guarded([&] {
    const Vocabulary::Id found = opened(text).find(place(token, "token"));
    *place(id, "id") = found == Vocabulary::kNone ? -1 : static_cast<int64_t>(found);
  });
}

ek_status ek_text_count(ek_text *text, int64_t *count) noexcept {
  return guarded([&] {
    const std::size_t found = opened(text).count();
    *place(count, "count") = static_cast<int64_t>(found);
  });
}

ek_status ek_text_encode(ek_text *text, const char *utf8, uint64_t bytes, int32_t add_special, int64_t *ids,
                         int64_t capacity, int64_t *count) noexcept {
  return guarded([&] {
    const Tokenizer &own = opened(text);
    give_ids(utf8, bytes, ids, capacity, count, [&](std::string_view given) { return own.encode(given, add_special != 0); });
  });
}

ek_status ek_text_encode_behind(ek_text *text, const char *utf8, uint64_t bytes, int64_t *ids, int64_t capacity,
                                int64_t *count) noexcept {
  return guarded([&] {
    const Tokenizer &own = opened(text);
    give_ids(utf8, bytes, ids, capacity, count, [&](std::string_view given) { return own.encode_behind(given); });
  });
}

ek_status ek_text_decode(ek_text *text, const int64_t *ids, int64_t count, int32_t skip_special, char *buffer,
                         uint64_t capacity, uint64_t *size) noexcept {
  return guarded([&] {
    const Tokenizer &tokenizer = opened(text);
    check_ids(ids, count);
    place(size, "size");
    fill(tokenizer.decode(ids, static_cast<std::size_t>(count), skip_special != 0), "the text", buffer, capacity, *size);
  });
}

ek_status ek_text_set_chat_form(ek_text *text, const char *json, uint64_t bytes) noexcept {
  return guarded([&] {
    opened(text);
    text->chat.emplace(std::string_view(place(json, "json"), static_cast<std::size_t>(bytes)), "chat.json");
  });
}

ek_status ek_text_chat(ek_text *text, const ek_text_message *messages, int64_t count, char *buffer, uint64_t capacity,
                       uint64_t *size) noexcept {
  return guarded([&] {
    opened(text);
    if (!text->chat) {
      fail(EK_INVALID_STATE, "the tokenizer has no form of chats; write the text of the conversation as the model's chat "
           "template does");
    }
    if (count < 0 || (messages == nullptr && count != 0)) fail(EK_INVALID_ARGUMENT, "messages are null, or count is ", count);
    place(size, "size");
    std::vector<ChatMessage> given;
    std::uint64_t bytes = 0;
    for (int64_t i = 0; i < count; ++i) {
      const ek_text_message &each = messages[i];
      if (each.role == nullptr || (each.content == nullptr && each.content_bytes != 0)) {
        fail(EK_INVALID_ARGUMENT, "role or content of message ", i, " is null");
      }
      if (each.content_bytes > EK_TEXT_MOST - bytes) fail(EK_INVALID_ARGUMENT, "messages of more than ", EK_TEXT_MOST, " bytes");
      bytes += each.content_bytes;
      const char *content = each.content == nullptr ? "" : each.content;
      given.push_back({each.role, {content, static_cast<std::size_t>(each.content_bytes)}});
    }
    fill(text->chat->apply(given), "the text", buffer, capacity, *size);
  });
}

ek_status ek_text_stream_open(ek_text *text, int32_t skip_special, ek_text_stream **stream) noexcept {
  return guarded([&] {
    *place(stream, "stream") = nullptr;
    *stream = new ek_text_stream(opened(text), skip_special != 0);
  });
}

void ek_text_stream_close(ek_text_stream *stream) noexcept { delete stream; }

ek_status ek_text_stream_push(ek_text_stream *stream, const int64_t *ids, int64_t count) noexcept {
  return guarded([&] {
    TextStream &own = opened(stream);
    check_ids(ids, count);
    own.push(ids, static_cast<std::size_t>(count));
  });
}

ek_status ek_text_stream_finish(ek_text_stream *stream) noexcept {
  return guarded([&] { opened(stream).finish(); });
}

ek_status ek_text_stream_take(ek_text_stream *stream, char *buffer, uint64_t capacity, uint64_t *size) noexcept {
  return guarded([&] {
    TextStream &own = opened(stream);
    *place(size, "size") = own.certain().size();
    if (buffer == nullptr) return;
    const std::string_view part = own.first(static_cast<std::size_t>(std::min<std::uint64_t>(capacity, *size)));
    if (part.empty() && *size != 0) fail(EK_BUFFER_TOO_SMALL, "the buffer has ", capacity, " bytes, a character more");
    *size = part.size();
    std::memcpy(buffer, part.data(), part.size());
    own.take(part.size());
  });
}
