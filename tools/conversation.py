"""A conversation as people hold it: lines that are prompts, and lines that are /commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.names import unknown
from edgekit.runtime.sampling.options import unknown_option
from edgekit.tools.answer_display import summary
from edgekit.tools.console import prose, table
from edgekit.tools.options import EXAMPLE, Assignment
from edgekit.tools.request import check_settings
from edgekit.tools.setting_table import allowed, rows
from edgekit.tools.terminal_text import counted
from edgekit.tools.transcript import Transcripts

if TYPE_CHECKING:
    from edgekit.runtime.api import Answer, Chat, Event, Model, Option

#: What each command takes, and what it does.
COMMANDS = {
    "/system": ("TEXT", "begin again with this system message; without TEXT, show it"),
    "/new": ("", "begin again"),
    "/undo": ("", "take the last turn back, or the last new beginning"),
    "/set": ("NAME=VALUE", "change a setting for the turns to come; NAME= takes that back, NAME alone shows "
                           "it, and /set by itself what is set"),
    "/options": ("", "list the settings"),
    "/stats": ("", "statistics of the last answer and of the conversation"),
    "/save": ("FILE", "write the conversation, as FILE.json to read, as FILE.kv to go on from with --resume; "
                      "without FILE, where it was written last"),
    "/help": ("", "list the commands"),
    "/quit": ("", "end (or Ctrl-D)"),
}  # fmt: skip


#: Other names that people try.
_ALIASES = {"/exit": "/quit"}


class Quit(Exception):
    """/quit was given."""


@dataclass(frozen=True)
class Turn:
    """A prompt and its answer."""

    prompt: str
    #: How many tokens there were before it.
    start: int
    answer: Answer
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class _Part:
    """A conversation from its beginning."""

    chat: Chat
    system: str | None
    turns: list[Turn] = field(default_factory=list)
    #: Turns before these, which another chat had.
    resumed: int = 0


class Conversation:
    """Turns with a model and what commands do to them. What commands say goes to stderr: stdout is for
    answers.
    """

    def __init__(
        self,
        model: Model,
        title: str,
        system: str | None,
        raw: bool,
        settings: Mapping[str, Any],
        resume: Path | None = None,
        bits: int | None = None,
    ):
        """Goes on from the file `resume`; saves keys and values with so many `bits` (`Chat.save`). Raises
        ChatTemplateError for a model without a chat template, unless `raw`, and what `Model.chat` raises of
        the file.
        """
        self._model, self._title, self._raw, self._bits = model, title, raw, bits
        #: For the next turn, by name.
        self.settings = dict(settings)
        self._transcripts = Transcripts()
        self._parts = [self._begin(system) if resume is None else self._resumed(resume)]

    def _begin(self, system: str | None) -> _Part:
        return _Part(self._model.chat(system=system, raw=self._raw), system)

    def _resumed(self, path: Path) -> _Part:
        chat = self._model.chat(resume=path)
        self._raw = chat.raw
        self._transcripts.know(path)
        messages = chat.messages
        system = messages[0]["content"] if messages and messages[0]["role"] == "system" else None
        return _Part(chat, system, resumed=chat.turns)

    @property
    def _part(self) -> _Part:
        return self._parts[-1]

    @property
    def turns(self) -> int:
        """Finished turns since the last beginning."""
        return self._part.resumed + len(self._part.turns)

    def prompt(self, line: str) -> str | None:
        """The prompt that a line is, if it is one: two slashes stand for one that begins no command."""
        if line.startswith("//"):
            return line[1:]
        return None if line.startswith("/") else line

    def completions(self, line: str) -> list[str]:
        """The commands that a line may have been begun for, with the names of settings."""
        if line.startswith("/set "):
            return [name for o in self._model.options() if (name := f"/set {o.name}=").startswith(line)]
        return [
            f"{name} " if takes else name for name, (takes, _) in COMMANDS.items() if name.startswith(line)
        ]

    def ask(self, prompt: str) -> Iterator[Event]:
        """The events of the next turn, which counts once Done was given. Raises EdgekitError."""
        from edgekit.runtime.api import Done

        part, settings = self._part, dict(self.settings)
        start = len(part.chat.ids)
        try:
            for event in part.chat.events(prompt, **settings):
                if isinstance(event, Done):
                    part.turns.append(Turn(prompt, start, event.answer, settings))
                yield event
        finally:
            # Ctrl-C may fall between the moment when the chat counts a turn and the one when we do.
            if part.chat.turns > part.resumed + len(part.turns):
                part.chat.undo()

    def command(self, line: str) -> None:
        """Do what a line that begins with a slash says. Raises Quit, EdgekitError, click.ClickException and
        OSError; nothing has changed then.
        """
        name, *rest = line.split(maxsplit=1)
        text = rest[0] if rest else ""
        name, text = _ALIASES.get(name, name), text.strip()
        if name not in COMMANDS:
            raise EdgekitError(f"{unknown('command', name, COMMANDS)} (// begins text with a slash)")
        if text and not COMMANDS[name][0]:
            raise EdgekitError(f"{name} takes nothing behind it")
        action: Callable[[str], None] = getattr(self, f"_{name[1:]}")
        action(text)

    def _system(self, text: str) -> None:
        if not text:
            system = self._part.system
            prose("no system message" if system is None else f"system message: {system}", err=True)
            return
        self._begin_again(text)

    def _new(self, text: str) -> None:
        self._begin_again(self._part.system)

    def _begin_again(self, system: str | None) -> None:
        part = self._begin(system)
        before = self.turns
        if not before:  # nothing to go back to
            self._parts.pop()
        self._parts.append(part)
        after = f"; /undo goes back to the one of {counted(before, 'turn')}" if before else ""
        prose(f"a new conversation{' with this system message' if system else ''}{after}", err=True)

    def _undo(self, text: str) -> None:
        part = self._part
        if part.turns:
            part.chat.undo()
            prose(f"taken back: {part.turns.pop().prompt}", err=True)
        elif part.resumed:
            before = part.chat.messages
            part.chat.undo()
            prompt = before[len(part.chat.messages)]["content"]
            self._parts[-1] = replace(part, resumed=part.resumed - 1)
            prose(f"taken back: {prompt}", err=True)
        elif len(self._parts) > 1:
            self._parts.pop()
            prose(f"back to the conversation of {counted(self.turns, 'turn')}", err=True)
        else:
            prose("there is no turn to take back", err=True)

    def _set(self, text: str) -> None:
        if not text:
            self._show_set()
        elif "=" not in text:
            self._show_setting(text)
        else:
            self._assign(text)

    def _show_set(self) -> None:
        if not self.settings:
            prose(
                f"nothing is set, so all is as the bundle says; /options lists it, /set {EXAMPLE} sets",
                err=True,
            )
        for name, value in self.settings.items():
            prose(f"{name} is {json.dumps(value)}", err=True)

    def _show_setting(self, name: str) -> None:
        known = {option.name: option for option in self._current()}
        if name not in known and name not in self.settings:
            raise unknown_option(name, list(known))
        value = self.settings[name] if name in self.settings else known[name].default
        said = f"{name} is {json.dumps(value)}{'' if name in self.settings else ', as the bundle says'}"
        if name in known:
            said += f"; it may be: {allowed(known[name])}. {known[name].help}"
        prose(said, err=True)

    def _assign(self, text: str) -> None:
        try:
            name, value = Assignment().convert(text, None, None)
        except click.BadParameter as error:
            raise EdgekitError(error.message) from None
        changed = {key: old for key, old in self.settings.items() if key != name}
        if value != "":
            changed[name] = value
        elif name not in self.settings:
            raise EdgekitError(f"{name} has not been set here, so it is as the bundle says")
        check_settings(self._model, changed)
        self.settings = changed
        prose(
            f"{name} is {json.dumps(value)}" if name in changed else f"{name} is as the bundle says", err=True
        )

    def _current(self) -> list[Option]:
        """The settings with the values that the next turn has as their defaults."""
        seed = self.settings.get("seed") or 0
        return [
            replace(option, default=seed) if option.name == "seed" else option
            for option in self._model.options(**self.settings)
        ]

    def _options(self, text: str) -> None:
        table(("name", "value", "may be", "meaning"), rows(self._current()), left=4, err=True)

    def _stats(self, text: str) -> None:
        if not self._part.turns:
            prose("there is no answer yet", err=True)
            return
        each = [turn.answer.statistics for turn in self._part.turns]
        prose(f"last answer: {summary(each[-1])}", err=True)
        prose(
            f"conversation: {counted(len(each), 'turn')}, {counted(len(self._part.chat.ids), 'token')}; "
            f"{counted(sum(s.tokens for s in each), 'token')} answered in "
            f"{counted(sum(s.steps for s in each), 'denoising step')} and "
            f"{sum(s.seconds for s in each):.1f} s",
            err=True,
        )

    def _save(self, text: str) -> None:
        last = self._transcripts.last
        if not text and last is None:
            raise EdgekitError("/save takes the name of a file, such as /save talk.json or /save talk.kv")
        if len(text) > 2 and text[0] == text[-1] and text[0] in "\"'":  # as a shell would take it
            text = text[1:-1]
        chat = self._part.chat
        path = self._transcripts.save(
            text or str(last), self.transcript, lambda path: chat.save(path, bits=self._bits)
        )
        prose(f"{counted(self.turns, 'turn')} saved in {path}", err=True)

    def _help(self, text: str) -> None:
        table(
            ("command", "does"),
            [[f"{name} {takes}".strip(), does] for name, (takes, does) in COMMANDS.items()],
            left=2,
            err=True,
        )
        prose("All else is a prompt; // begins one with a slash. Ctrl-C stops an answer.", err=True)

    def _quit(self, text: str) -> None:
        raise Quit

    def transcript(self) -> dict[str, Any]:
        """The conversation as plain data: messages, and every token of it turn by turn, but for those turns
        that it was resumed with.
        """
        import edgekit

        return {
            "edgekit": edgekit.__version__,
            "bundle": self._model.path.resolve().name,
            "model": self._title,
            "raw": self._raw,
            "settings": self.settings,
            "messages": self._part.chat.messages,
            "resumed_turns": self._part.resumed,
            "turns": [
                {
                    "prompt_ids": turn.answer.prompt_ids[turn.start :],
                    "answer_ids": turn.answer.ids,
                    "settings": turn.settings,
                    "statistics": asdict(turn.answer.statistics),
                }
                for turn in self._part.turns
            ],
        }
