"""Chat templates as a small form for applications without Jinja: what stands between the turns.

A template is a program. Those of most models only put fixed texts around what is said: the texts are found by
rendering a few conversations, and the core, given these texts, has to write what the template writes, over
some thousand conversations, whose contents have among them every text that the template is written with.
Where it differs for contents that have a certain mark in them, as Qwen3's does for <tool_response>, the form
refuses them. A template that does more keeps Jinja, for Python alone.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.errors import one_line
from edgekit.runtime.tokenizer import ChatTemplateError, Tokenizer
from edgekit.runtime.tokenizer.core_text import CoreText

CHAT_FILE = "chat.json"
VERSION = 2
#: Conversations of chance that the core's text is compared over, and pairs of marks around a content.
COMPARED, MOST_PAIRS = 300, 500
#: Texts that a template may be written with, published ones have 40, and that a form may refuse.
MOST_TEXTS, MOST_REFUSED = 256, 16
#: A text has more characters than numbers up to this one in the template, a conversation more messages.
MOST_CHARACTERS, MOST_MESSAGES = 1 << 16, 256
#: What thoughts end with that templates leave out of earlier answers.
_THOUGHT = "</think>"
#: What templates ask for the time.
_CLOCK = "strftime_now"
_DOES_MORE = "the chat template does more than to put texts around what is said"

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
        core.set_chat_form(_written(form))
        compared = _Compared(tokenizer)
        for messages in compared.conversations(with_system=form["system"] is not None):
            try:
                wanted, why = tokenizer.render_chat(messages), ""
            except ChatTemplateError as error:
                wanted, why = "", f"the chat template refuses a conversation: {one_line(error)}"
            if why or core.chat(messages) != wanted:
                compared.differs(messages, why or _DOES_MORE)
        text = _written(form | {"refused": compared.refused()})
        core.set_chat_form(text)
        return text


def _written(form: Mapping[str, Any]) -> bytes:
    return (json.dumps(form, ensure_ascii=False, indent=1) + "\n").encode()


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
            "refused": [],
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


#: Texts that templates may treat in their own way: white space of all kinds, nothing at all, thoughts, marks
#: of Jinja and HTML.
_TEXTS = (
    "What is 23 + 45?", "", " ", "\n", "  padded  ", "\n\nlines\n\n", "\u00a0\u2003wide\u3000\u2029",
    "\x1c\x85odd\x1f", "\u200bzero\ufeff", "<think>\nI see.\n</think>\n\nYes.", "a</think>b</think>\n c",
    "<think>", "{{ messages }}{% if x %}", "naïve 🦊 \u202eש", '"quoted" \\n', "system: no",
    "\t", "a\tb  c\t", "a\r\nb\r", "a\n\n\nb \n c", "\x0b\x0c", "<b>it's &amp;</b>", "a, b; c - d_e *f* #g",
)  # fmt: skip
_THINKS = f"<think>\nI see.\n{_THOUGHT}\n\nYes."


class _Compared:
    """Conversations over which a form is compared with its template, and what it is to refuse."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises NoChatForm for a template of more texts than can be compared."""
        texts, self._numbers = tokenizer.template_constants()
        special = [token for token in tokenizer.special_tokens.values() if token]
        self._texts = list(dict.fromkeys(text for text in (*texts, *special) if text))
        if len(self._texts) > MOST_TEXTS:
            raise NoChatForm(f"the chat template is written with more than {MOST_TEXTS} texts")
        #: Of these a content can do without.
        self._marks = [text for text in self._texts if len(text.strip()) > 2 and not _of_words(text)]
        self._thinks = any("think" in text.lower() for text in self._texts)
        self._differing: list[set[tuple[str, str]]] = []

    def conversations(self, *, with_system: bool) -> Iterator[list[Message]]:
        """All of them. The first ones have no text of the template."""
        drawn = random.Random(1)
        for count in self._counts():
            for system in (False, True)[: 1 + with_system]:
                yield _said([f"Text {number}" for number in range(count)], "Sone" if system else None)
        numbers = [number for number in self._numbers if number <= MOST_CHARACTERS]
        long = " ".join(map(str, range(max(300, *numbers) if numbers else 300)))
        yield from self._around(long, with_system)
        texts = (*_TEXTS, *self._texts)
        for number in range(COMPARED):
            contents = [drawn.choice(texts) + drawn.choice(["", *texts]) for _ in range(1 + 2 * (number % 4))]
            yield _said(contents, drawn.choice(texts) if with_system and drawn.random() < 0.5 else None)
        for text in self._texts:
            for content in (text, f"{text} x", f"x {text}", f"x {text} y", f"{text} x {text}"):
                yield from self._around(content, with_system)
        pairs = list(permutations(self._marks, 2))
        for first, last in drawn.sample(pairs, min(len(pairs), MOST_PAIRS)):
            yield from self._around(first + drawn.choice(("x", "\nx\n", " x ")) + last, with_system)

    def _around(self, content: str, with_system: bool) -> Iterator[list[Message]]:
        """Conversations with a content at every place, between plain answers and thoughts."""
        yield [_user(content)]
        for answer in ("Yes.", _THINKS)[: 1 + self._thinks]:
            contents = ["Is it?", answer, "And then?", answer, "Why?"]
            if with_system:
                yield _said(contents, content)
            for place in range(len(contents)):
                yield _said([*contents[:place], content, *contents[place + 1 :]], None)

    def _counts(self) -> list[int]:
        """Of messages, the last of which is the user's."""
        near = {number + more for number in self._numbers if number <= MOST_MESSAGES for more in range(-1, 3)}
        return sorted({*range(1, 14, 2), *(count for count in near if count > 0 and count % 2)})

    def differs(self, messages: Sequence[Message], why: str) -> None:
        """The form does not write this conversation. Raises NoChatForm, which says why, where it has no mark
        that could be refused.
        """
        found = {
            (message["role"], mark)
            for message in messages
            for mark in self._marks
            if mark in message["content"] and (message["role"] != "assistant" or not _of_thoughts(mark))
        }
        if not found:
            raise NoChatForm(why)
        self._differing.append(found)

    def refused(self) -> list[dict[str, str]]:
        """The fewest marks by role that every conversation that differs has one of, or nearly. Raises
        NoChatForm where these are many.
        """
        found, left = list[dict[str, str]](), self._differing
        while left:
            counted = Counter(each for marks in left for each in marks)
            role, text = min(counted, key=lambda each: (-counted[each], len(each[1]), each))
            found.append({"role": role, "text": text})
            left = [marks for marks in left if (role, text) not in marks]
        if len(found) > MOST_REFUSED:
            raise NoChatForm(_DOES_MORE)
        return found


def _of_words(text: str) -> bool:
    return all(letter.isalnum() or letter in " _-'.,:!?\n" for letter in text)


def _of_thoughts(mark: str) -> bool:
    """Whether every answer of a model that thinks has it."""
    return mark.strip() in _THINKS or _THOUGHT in mark


def _said(contents: Sequence[str], system: str | None) -> list[Message]:
    found = [(_user, _assistant)[turn % 2](content) for turn, content in enumerate(contents)]
    return found if system is None else [{"role": "system", "content": system}, *found]
