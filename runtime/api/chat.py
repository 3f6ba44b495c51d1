"""A conversation with a model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edgekit.runtime.api.answer import Answer, Done, Event, answer_of, text_of
from edgekit.runtime.api.chat_note import ChatNote, Turn
from edgekit.runtime.api.prompt import (
    Prompt,
    check_template_arguments,
    check_template_unused,
    encode,
    held,
    ids_of,
    messages_of,
)
from edgekit.runtime.errors import GenerationEnded
from edgekit.runtime.generation import Settings
from edgekit.runtime.prompt_text import refused_as_prompt
from edgekit.runtime.sampling.errors import InvalidPrompt
from edgekit.runtime.session import read_saved
from edgekit.runtime.tokenizer import ChatTemplateError, Tokenizer

if TYPE_CHECKING:
    from edgekit.runtime.sampling.types import Ids
    from edgekit.runtime.session import SavedSequence


@dataclass(frozen=True, eq=False)
class _State:
    """A conversation between two turns."""

    messages: tuple[dict[str, Any], ...]
    ids: tuple[int, ...] = ()
    #: How many of the messages stand before the last answer.
    asked: int = 0
    #: What of the ids the model had encoded, piece by piece.
    encoded: list[Ids] = field(default_factory=list)
    ended: bool = False  # the answer, by an end token


class Generates(Protocol):
    """The side of `edgekit.Model` that a conversation needs."""

    @property
    def path(self) -> Path: ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def run(
        self,
        prompt_ids: Sequence[int],
        ids: Sequence[int],
        settings: Settings,
        behind: Sequence[Ids] | None = None,
    ) -> Iterator[Event]: ...

    def encoded(self) -> list[Ids]: ...

    def digest(self) -> str: ...

    def save_text(
        self,
        path: str | os.PathLike[str],
        encoded: Sequence[Ids],
        behind: Sequence[int],
        note: bytes,
        bits: int,
    ) -> None: ...

    def resume_text(self, saved: SavedSequence) -> None: ...


class Chat:
    """A conversation that keeps its state: every prompt follows those before it and their answers, token for
    token as they were committed. `Model.chat` makes it.

    A turn counts when it is finished. One that fails, or whose stream is left midway, is undone: the
    conversation is then as it was before the turn. Several conversations with a model may take turns, with
    other generations between them; each goes on where it was, at the price of encoding its text again.

    >>> chat = model.chat()
    >>> chat.generate("Copy this: red 7", seed=1).text
    'red 7'
    >>> chat.generate("Write as JSON: name: Ada; age: 31", seed=1).text
    '{"name": "Ada", "age": 31}'
    >>> [message["role"] for message in chat.messages]
    ['user', 'assistant', 'user', 'assistant']
    >>> chat.undo()
    >>> len(chat.messages)
    2
    """

    def __init__(
        self,
        model: Generates,
        tokenizer: Tokenizer,
        system: str | None,
        raw: bool,
        chat_template_kwargs: Mapping[str, Any] | None,
    ) -> None:
        """For `Model.chat`."""
        check_template_arguments(system, raw, chat_template_kwargs)
        self._model, self._raw, self._variables = model, raw, dict(chat_template_kwargs or {})
        self._tokenizer = tokenizer
        if raw:
            check_template_unused("raw leaves the chat template out", system, chat_template_kwargs)
        elif not self._tokenizer.chat_templates:
            raise ChatTemplateError(
                f"{model.path}: the model has no chat template, so it knows no turns; use raw=True "
                "to go on from plain text"
            )
        messages = () if system is None else ({"role": "system", "content": system},)
        self._states = [_State(messages)]
        self._bits = 32  # of keys and values in the file that it was resumed from

    @classmethod
    def resumed(cls, model: Generates, tokenizer: Tokenizer, path: str | os.PathLike[str]) -> Chat:
        """For `Model.chat`."""
        saved = read_saved(path)
        note = ChatNote.read(saved, model.digest(), model.path)
        chat = cls(model, tokenizer, None, note.raw, None)
        chat._variables, chat._bits = note.variables, saved.bits
        chat._states = [
            _State(
                tuple(note.messages[: turn.messages]),
                tuple(note.ids[: turn.ids]),
                turn.asked,
                saved.pieces[: turn.pieces],
                turn.ended,
            )
            for turn in note.turns
        ]
        if saved.pieces:
            model.resume_text(saved)
        return chat

    def save(self, path: str | os.PathLike[str], *, bits: int | None = None) -> None:
        """Write the conversation to a file from which `Model.chat(resume=path)` goes on, also in another
        process: its messages, its tokens, and for models with a prefix the keys and values, so that nothing
        is encoded twice. The file is whole, or not there; it belongs to the bundle and to the engine. What is
        being answered is not part of it, and ends.

        Args:
            path: the file, which is replaced if it is there.
            bits: 32 keeps keys and values as they were computed; 8 takes a quarter of the room, and answers
                may differ from those that the conversation would have had. None: as the file that the
                conversation was resumed from has them, otherwise 32.

        Raises InvalidRequest for other bits, WriteFailed, and what `generate` raises where the model has gone
        on with another text, so that this one is encoded again.

        >>> chat = model.chat()
        >>> chat.generate("Copy this: red 7", seed=1).text
        'red 7'
        >>> chat.save(folder / "talk.kv")
        >>> model.chat(resume=folder / "talk.kv").generate("Copy this: cat 7", seed=1).text
        'cat 7'
        """
        state = self._state
        turns = [
            Turn(len(each.messages), len(each.ids), each.asked, len(each.encoded), each.ended)
            for each in self._states
        ]
        note = ChatNote(self._raw, self._variables, list(state.messages), list(state.ids), turns)
        known = sum(map(len, state.encoded))
        self._model.save_text(
            path,
            state.encoded,
            state.ids[known:],
            note.as_bytes(self._model.digest()),
            self._bits if bits is None else bits,
        )

    def generate(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        deadline_seconds: float | None = None,
        **settings: Any,
    ) -> Answer:
        """The model's answer to the next prompt: text, messages, or token ids, which follow the
        conversation's as they are. Arguments, result and errors are those of `Model.generate`.
        """
        return answer_of(
            self._turn(prompt, Settings(max_new_tokens, steps, seed, settings, deadline_seconds))
        )

    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        deadline_seconds: float | None = None,
        **settings: Any,
    ) -> Iterator[str]:
        """The text of `generate` as it is committed; the turn counts once the stream is at its end."""
        return text_of(self._turn(prompt, Settings(max_new_tokens, steps, seed, settings, deadline_seconds)))

    def events(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        deadline_seconds: float | None = None,
        **settings: Any,
    ) -> Iterator[Event]:
        """The events on the way to the answer, as `Model.events`; the turn counts once Done was given."""
        return self._turn(prompt, Settings(max_new_tokens, steps, seed, settings, deadline_seconds))

    @property
    def messages(self) -> list[dict[str, Any]]:
        """A copy of the conversation as messages, ready for JSON; the assistant's hold the answers' text."""
        return deepcopy(list(self._state.messages))

    @property
    def ids(self) -> tuple[int, ...]:
        """Every token of the conversation: prompts, what the chat template puts around them, and answers."""
        return self._state.ids

    @property
    def raw(self) -> bool:
        """Whether prompts and answers follow each other as they are, without a chat template."""
        return self._raw

    @property
    def turns(self) -> int:
        """How many prompts have their answers."""
        return len(self._states) - 1

    def __repr__(self) -> str:
        return f"<edgekit.Chat of {self.turns} turn{'' if self.turns == 1 else 's'} with {self._model!r}>"

    def undo(self) -> None:
        """Take the last turn back, prompt and answer. Without one, nothing happens."""
        if len(self._states) > 1:
            self._states.pop()

    @property
    def _state(self) -> _State:
        return self._states[-1]

    def _turn(self, prompt: Prompt, settings: Settings) -> Iterator[Event]:
        state, model, given = self._state, self._model, held(prompt)
        messages = self._messages(given)
        ids = (*state.ids, *self._next_ids(given, messages))
        known = sum(map(len, state.encoded))
        return self._events(state, messages, model.run(ids, ids[known:], settings, state.encoded))

    def _events(
        self, state: _State, messages: list[dict[str, Any]], events: Iterator[Event]
    ) -> Iterator[Event]:
        for event in events:
            if self._state is not state:
                raise GenerationEnded("this turn has ended: the conversation was changed meanwhile")
            if isinstance(event, Done):
                answer = event.answer
                reply = {"role": "assistant", "content": answer.text}
                after = _State(
                    (*state.messages, *messages, reply),
                    (*answer.prompt_ids, *answer.ids),
                    len(state.messages) + len(messages),
                    self._model.encoded(),
                    answer.statistics.finish_reason == "eos",
                )
                self._states.append(after)
            yield event

    def _messages(self, prompt: str | list[Any]) -> list[dict[str, Any]]:
        """The prompt as messages; of token ids their text."""
        found = messages_of(prompt)
        if found is None:
            return [{"role": "user", "content": self._model.decode(ids_of(prompt))}]
        if self._raw and not isinstance(prompt, str):
            raise InvalidPrompt("this conversation has no chat template, which messages need; give text")
        return found

    def _next_ids(self, prompt: str | list[Any], messages: list[dict[str, Any]]) -> list[int]:
        """Tokens that the prompt adds to the conversation."""
        state, tokenizer = self._state, self._tokenizer
        if messages_of(prompt) is None:
            return ids_of(prompt)
        if not self._raw and not state.ids:
            return encode(tokenizer, [*state.messages, *messages], None, False, self._variables)
        with refused_as_prompt():
            if self._raw:
                text = messages[0]["content"]
                return tokenizer.encode_behind(text) if state.ids else tokenizer.encode(text)
            last = state.ids[-1] if state.ended else None
            before = state.messages[: state.asked]
            return tokenizer.chat_turn(before, messages, last, **self._variables)
