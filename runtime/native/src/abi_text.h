// What functions of edgekit.h have in common that are given a text.
#ifndef EDGEKIT_ABI_TEXT_H
#define EDGEKIT_ABI_TEXT_H

#include <optional>
#include <string>
#include <string_view>

#include "edgekit.h"
#include "error.h"
#include "text/chat_form.h"
#include "text/tokenizer.h"

struct ek_text {
  ek_text(std::string_view json, const std::string &where) : tokenizer(json, where) {}
  const edgekit::Tokenizer tokenizer;
  std::optional<edgekit::ChatForm> chat;
};

namespace edgekit {

// These throw Error (EK_INVALID_ARGUMENT) for null.
inline const Tokenizer &opened(const ek_text *text) {
  if (text == nullptr) fail(EK_INVALID_ARGUMENT, "the text is null; open it with ek_text_open");
  return text->tokenizer;
}

template <typename T>
T *place(T *given, const char *what) {
  if (given == nullptr) fail(EK_INVALID_ARGUMENT, what, " is null; give its address");
  return given;
}

}  // namespace edgekit

#endif  // EDGEKIT_ABI_TEXT_H
