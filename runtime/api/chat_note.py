"""What a saved conversation says beside its text: the note of its file, as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from edgekit.flashload.errors import InvalidRequest, MalformedFile, UnsupportedVersion
from edgekit.runtime.api.prompt import messages_of
from edgekit.runtime.sampling.errors import InvalidPrompt

if TYPE_CHECKING:
    from edgekit.runtime.session import SavedSequence

_KIND, _VERSION = "edgekit chat", 1


@dataclass(frozen=True)
class Turn:
    """A conversation after a turn, as parts of what it is at its end: how many messages and tokens there
    were, messages before the last answer, pieces of encoded text, and whether an end token ended the answer.
    """

    messages: int
    ids: int
    asked: int
    pieces: int
    ended: bool


@dataclass(frozen=True)
class ChatNote:
    """A conversation in plain data; the first of `turns` is its beginning."""

    raw: bool
    variables: dict[str, Any]
    messages: list[dict[str, Any]]
    ids: list[int]
    turns: list[Turn]

    def as_bytes(self, bundle: str) -> bytes:
        """The note of its file. Raises InvalidRequest for variables of the chat template that are no JSON."""
        content = {
            _KIND: _VERSION,
            "bundle": bundle,
            "raw": self.raw,
            "variables": self.variables,
            "messages": self.messages,
            "ids": list(map(int, self.ids)),
            "turns": [astuple(turn) for turn in self.turns],
        }
        try:
            return json.dumps(content).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"the conversation cannot be saved: it is no JSON ({error})") from None

    @classmethod
    def read(cls, saved: SavedSequence, bundle: str, where: Path) -> ChatNote:
        """The conversation of a file for the bundle with this digest at `where`; the file may come from
        anybody.

        Raises InvalidRequest for another bundle, MalformedFile, UnsupportedVersion.
        """

        def refuse(what: str) -> NoReturn:
            raise MalformedFile(f"{saved.path}: is no saved conversation: {what}; begin it anew")

        try:
            content = json.loads(saved.note)
        except (ValueError, RecursionError):
            refuse("its note is no JSON")
        if not isinstance(content, dict) or _KIND not in content:
            refuse("it is a sequence without one")
        if content[_KIND] != _VERSION:
            raise UnsupportedVersion(
                f"{saved.path}: its conversation has another version than {_VERSION}, which this edgekit "
                "reads; use the version that saved it"
            )
        if set(content) != {_KIND, "bundle", "raw", "variables", "messages", "ids", "turns"}:
            refuse("its note has other entries")
        if content["bundle"] != bundle:
            raise InvalidRequest(
                f"{saved.path}: belongs to another bundle than {where}; resume it with the one that it "
                "was saved with"
            )
        messages, ids, variables = content["messages"], content["ids"], content["variables"]
        if not isinstance(variables, dict) or not isinstance(content["raw"], bool):
            refuse("its settings")
        if not isinstance(ids, list) or not all(type(token) is int and 0 <= token < 1 << 62 for token in ids):
            refuse("its tokens")
        _check_messages(messages, refuse)
        turns = _turns(content["turns"], refuse)
        ends = [0, *np.cumsum([len(piece) for piece in saved.pieces]).tolist()]
        last = turns[-1]
        if (last.messages, last.ids, last.pieces) != (len(messages), len(ids), len(saved.pieces)):
            refuse("its turns")
        for turn, following in zip(turns, turns[1:], strict=False):
            if any(a > b for a, b in zip(astuple(turn)[:4], astuple(following)[:4], strict=True)):
                refuse("its turns")
        if any(turn.asked > turn.messages or ends[turn.pieces] > turn.ids for turn in turns):
            refuse("its turns")
        if not np.array_equal(np.concatenate([[], *saved.pieces]), np.array(ids[: ends[-1]])):
            refuse("its tokens")
        if last.ids and any(turn.ids == 0 and turn is not turns[0] for turn in turns):
            refuse("its turns")
        return cls(content["raw"], variables, messages, ids, turns)


def _check_messages(messages: Any, refuse: Any) -> None:
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        refuse("its messages")
    try:
        if messages:
            messages_of(messages)
    except InvalidPrompt as error:
        refuse(f"its messages: {error}")


def _turns(given: Any, refuse: Any) -> list[Turn]:
    if not isinstance(given, list) or not given:
        refuse("its turns")
    for row in given:
        if not isinstance(row, list) or len(row) != 5 or type(row[4]) is not bool:
            refuse("its turns")
        if not _are_counts(row[:4]):
            refuse("its turns")
    return [Turn(*row) for row in given]


def _are_counts(row: Sequence[Any]) -> bool:
    return all(type(value) is int and 0 <= value < 1 << 31 for value in row)
