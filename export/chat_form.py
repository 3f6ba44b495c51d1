"""Chat templates as a small form for applications without Jinja: what stands between the turns.

A template is a program. Those of most models only put fixed texts around what is said: the texts are found by
rendering a few conversations, and the core, given these texts, has to write what the template writes, over
some hundred conversations. A template that does more keeps Jinja, for Python alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.errors import one_line
from edgekit.runtime.tokenizer import ChatTemplateError, Tokenizer
from edgekit.runtime.tokenizer.core_text import CoreText

CHAT_FILE = "chat.json"
VERSION = 1
#: Conversations that the core's text is compared over.
COMPARED = 300
#: What thoughts end with that templates leave out of earlier answers.
_THOUGHT = "</think>"
#: What templates ask for the time.
_CLOCK = "strftime_now"

Message = Mapping[str, str]


class NoChatForm(EdgekitError):
    """The chat template does more than put texts around what is said."""


def chat_form(tokenizer: Tokenizer, tokenizer_json: bytes) -> bytes:
    """The contents of `CHAT_FILE` for the template that a tokenizer has by default.

    Raises NoChatForm where there is none or it is no such form, and MalformedFile or UnsupportedBundle where
    the core does not read the tokenizer.
    """
    with CoreText(tokenizer_json) as core:
        if "default" not in tokenizer.chat_templates:
            raise NoChatForm("the model has no chat template")
        if _CLOCK in tokenizer.chat_templates["default"]:
            raise NoChatForm("the chat template asks for the date")
        try:
            form = _Finder(tokenizer).form()
        except ChatTemplateError as error:
            raise NoChatForm(f"the chat template refuses a user's question: {one_line(error)}") from error
        text = (json.dumps(form, ensure_ascii=False, indent=1) + "\n").encode()
        core.set_chat_form(text)
        for messages in conversations(tokenizer, with_system=form["system"] is not None):
            try:
                wanted = tokenizer.render_chat(messages)
            except ChatTemplateError as error:
                raise NoChatForm(f"the chat template refuses a conversation: {one_line(error)}") from error
            if core.chat(messages) != wanted:
                raise NoChatForm("the chat template does more than to put texts around what is said")
        return text


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


#: A conversation of words that no template has.
_TURNS = (_user("Uone"), _assistant("Aone"), _user("Utwo"))


class _Finder:
    """Finds the texts around words that no template has."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def form(self) -> dict[str, Any]:
        """What chat.json holds. Raises ChatTemplateError, and NoChatForm where words of the conversation are
        not found.
        """
        text = self._tokenizer.render_chat(_TURNS)
        begin, reply, following, answer = _parted(text, [each["content"] for each in _TURNS])
        return {
            "version": VERSION,
            "begin": begin,
            "system": self._system(begin, following),
            "reply": reply,
            "next": following,
            "answer": answer,
            "trim_user": self._trims(_user),
            "trim_assistant": self._trims(_assistant),
            "thought": "" if self._keeps(f"Tone{_THOUGHT}\n\nAone", "Tone") else _THOUGHT,
        }

    def _system(self, begin: str, following: str) -> dict[str, Any] | None:
        """What stands around a system message; None where the template takes none."""
        system = {"role": "system", "content": "Sone"}
        try:
            text = self._tokenizer.render_chat([system, *_TURNS])
        except ChatTemplateError:
            return None
        last = text.find("Sone") > text.find("Uone")
        if last:
            begun, _, before, after, _ = _parted(text, ["Uone", "Aone", "Sone", "Utwo"])
            if begun != begin or not before.startswith(following):
                raise NoChatForm("the chat template puts a system message in the middle of a turn")
            before = before[len(following) :]
        else:
            before, after, *_ = _parted(text, ["Sone", "Uone", "Aone", "Utwo"])
        padded = self._tokenizer.render_chat([{**system, "content": "\n Sone \n"}, *_TURNS])
        return {"before": before, "after": after, "trim": "\n Sone \n" not in padded, "last": last}

    def _trims(self, said: Any) -> bool:
        return not self._keeps("\n Aone \n", "\n Aone \n", said)

    def _keeps(self, content: str, part: str, said: Any = _assistant) -> bool:
        middle = [_user(content), _assistant("Atwo")] if said is _user else [_user("Uone"), said(content)]
        return part in self._tokenizer.render_chat([*middle, _user("Utwo")])


def _parted(text: str, words: Sequence[str]) -> list[str]:
    """What stands before, between and behind words, which the text has once each. Raises NoChatForm."""
    found = []
    for word in words:
        before, seen, text = text.partition(word)
        if not seen or word in text:
            raise NoChatForm("the chat template leaves out or repeats what is said")
        found.append(before)
    return [*found, text]


def conversations(tokenizer: Tokenizer, *, with_system: bool) -> Iterator[list[Message]]:
    """Conversations of all lengths up to seven turns, over texts that templates may treat in their own way:
    white space of all kinds at their ends, nothing at all, special tokens, thoughts, marks of Jinja.
    """
    special = [token for token in tokenizer.special_tokens.values() if token]
    texts = [
        "What is 23 + 45?", "", " ", "\n", "  padded  ", "\n\nlines\n\n", "\u00a0\u2003wide\u3000\u2029",
        "\x1c\x85odd\x1f", "\u200bzero\ufeff", "<think>\nI see.\n</think>\n\nYes.", "a</think>b</think>\n c",
        "<think>", "{{ messages }}{% if x %}", "naïve 🦊 \u202eש", '"quoted" \\n', "system: no", *special,
    ]  # fmt: skip
    drawn = random.Random(1)
    for number in range(COMPARED):
        turns = 1 + 2 * (number % 4)
        found: list[Message] = []
        if with_system and drawn.random() < 0.5:
            found.append({"role": "system", "content": drawn.choice(texts)})
        for turn in range(turns):
            found.append((_user, _assistant)[turn % 2](drawn.choice(texts) + drawn.choice(["", *texts])))
        yield found
