#include "text/chat_form.h"

#include <cstdint>

#include "edgekit.h"
#include "error.h"
#include "text/tables.h"
#include "text/unicode.h"
#include "utf8.h"

namespace edgekit {
namespace {

constexpr std::int64_t kVersion = 2;
constexpr std::int64_t kWithoutRefused = 1;  // is read too
constexpr std::size_t kMostRefused = 64;

std::string_view trimmed(std::string_view text) {
  std::size_t begin = text.size(), end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    if (is_white(next_code_point(text, at))) continue;
    if (end == 0) begin = start;
    end = at;
  }
  return end == 0 ? std::string_view() : text.substr(begin, end - begin);
}

// What stands behind the last `end` and the line ends behind it; all of it where there is none.
std::string_view without_thought(std::string_view text, std::string_view end) {
  const std::size_t at = end.empty() ? std::string_view::npos : text.rfind(end);
  if (at == std::string_view::npos) return text;
  text.remove_prefix(at + end.size());
  while (!text.empty() && text.front() == '\n') text.remove_prefix(1);
  return text;
}

}  // namespace

ChatForm::ChatForm(std::string_view text, const std::string &where) {
  if (text.size() > kMostFileBytes) fail(EK_MALFORMED_FILE, where, ": ", text.size(), " bytes; a form of chats has few");
  const Json table = Json::parse(text, where);
  const std::int64_t version = table.at("version").integer();
  if (version != kVersion && version != kWithoutRefused) {
    fail(EK_UNSUPPORTED_BUNDLE, where, ": version ", version, "; this library reads ", kVersion, ": export the bundle again");
  }
  begin_ = utf8_of(table.at("begin"));
  if (const Json &system = table.at("system"); !system.is_null()) {
    system_ = System{utf8_of(system.at("before")), utf8_of(system.at("after")), system.at("trim").boolean(),
                     system.at("last").boolean()};
  }
  reply_ = utf8_of(table.at("reply"));
  next_ = utf8_of(table.at("next"));
  answer_ = utf8_of(table.at("answer"));
  trim_user_ = table.at("trim_user").boolean();
  trim_assistant_ = table.at("trim_assistant").boolean();
  thought_ = text_of(table.at("thought"));
  if (version == kWithoutRefused) return;
  for (const Json &each : table.at("refused").array()) {
    refused_.push_back({text_of(each.at("role")), text_of(each.at("text"))});
    if (refused_.back().text.empty() || refused_.size() > kMostRefused) {
      fail(EK_MALFORMED_FILE, where, ": refuses an empty text, or more than ", kMostRefused, " texts; export the bundle again");
    }
  }
}

std::string ChatForm::apply(const std::vector<ChatMessage> &messages) const {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::size_t good = utf8_prefix(messages[i].content);
    if (good != messages[i].content.size()) {
      fail(EK_INVALID_ARGUMENT, "the content of message ", i, " is not UTF-8 at byte ", good, "; give it so encoded");
    }
    for (const Refused &each : refused_) {
      if (messages[i].role != each.role || messages[i].content.find(each.text) == std::string_view::npos) continue;
      fail(EK_INVALID_ARGUMENT, "the content of message ", i, " has ", in_quotes(each.text),
           " in it, which the model's chat template treats in a way of its own; leave it away, or write the text of the "
           "conversation as the template does");
    }
  }
  const bool has_system = !messages.empty() && messages.front().role == "system";
  if (has_system && !system_) {
    fail(EK_INVALID_ARGUMENT, "message 0 is the system's, for which this model has no place; leave it away");
  }
  const std::size_t first = has_system ? 1 : 0;
  for (std::size_t i = first; i < messages.size(); ++i) {
    const std::string_view wanted = (i - first) % 2 == 0 ? "user" : "assistant";
    if (messages[i].role != wanted) {
      fail(EK_INVALID_ARGUMENT, "message ", i, " is of role '", std::string(messages[i].role.substr(0, 40)), "', where one of '",
           std::string(wanted), "' is to stand: a chat is a system message or none, then user and assistant in turn");
    }
  }
  if ((messages.size() - first) % 2 == 0) {
    fail(EK_INVALID_ARGUMENT, messages.size(), " messages that do not end with the user's; what is to be answered is the last");
  }
  std::string out;
  const auto add = [&out](std::string_view content, bool trim) { out.append(trim ? trimmed(content) : content); };
  const auto add_system = [&] {
    out += system_->before;
    add(messages.front().content, system_->trim);
    out += system_->after;
  };
  const bool system_first = has_system && !system_->last;
  for (std::size_t i = first; i < messages.size(); ++i) {
    const std::string_view content = messages[i].content;
    if (out.size() > EK_TEXT_MOST) {
      fail(EK_INVALID_ARGUMENT, "a conversation whose text has more than ", EK_TEXT_MOST, " bytes; leave earlier messages away");
    }
    if ((i - first) % 2 == 1) {
      out += reply_;
      add(without_thought(content, thought_), trim_assistant_);
      continue;
    }
    if (i == first && system_first) {
      add_system();
    } else {
      out += i == first ? begin_ : next_;
    }
    if (i + 1 == messages.size() && has_system && system_->last) add_system();
    add(content, trim_user_);
  }
  return out + answer_;
}

}  // namespace edgekit
