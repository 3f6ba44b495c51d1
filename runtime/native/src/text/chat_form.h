// How the turns of a conversation become one text: what stands between them, for chat templates that do no more than that.
#ifndef EDGEKIT_TEXT_CHAT_FORM_H
#define EDGEKIT_TEXT_CHAT_FORM_H

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"

namespace edgekit {

struct ChatMessage {
  std::string_view role, content;  // "system", "user" or "assistant"; UTF-8
};

class ChatForm {
 public:
  static constexpr std::size_t kMostFileBytes = std::size_t{1} << 20;

  // `text` is that of a chat.json, as edgekit.export.chat_form writes it; `where` names it in messages. Throws Error:
  // EK_MALFORMED_FILE, EK_UNSUPPORTED_BUNDLE for a version that this library does not know.
  ChatForm(std::string_view text, const std::string &where);

  // The text of a conversation, which ends with the opening of the answer: perhaps a system message, then one of the user,
  // and in turn the assistant's and the user's, the last of them the user's. Throws Error (EK_INVALID_ARGUMENT) for
  // another order, for what is not UTF-8, and for a content that the form does not know what to do with.
  std::string apply(const std::vector<ChatMessage> &messages) const;

 private:
  struct System {
    std::string before, after;
    bool trim = false;
    bool last = false;  // it stands before the last text of the user, else in place of `begin_`
  };

  std::string begin_;                       // stands before the first text of the user where no system message is
  std::optional<System> system_;            // what stands around a system message
  std::string reply_, next_;                // stand between a text of the user and an earlier answer, and behind that
  std::string answer_;                      // stands behind the last text
  bool trim_user_ = false, trim_assistant_ = false;  // white space around the content is left out
  struct Refused {
    std::string role, text;
  };
  std::vector<Refused> refused_;            // what the template treats in a way of its own where a content has it
  std::string thought_;                     // answers up to the last of these are left out, and line ends behind it
};

}  // namespace edgekit

#endif  // EDGEKIT_TEXT_CHAT_FORM_H
