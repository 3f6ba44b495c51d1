"""The input: a prompt a line, as JSON. A line that cannot be used says why; the others are not concerned.

    {"prompt": "Why is the sky blue?", "id": "sky", "seed": 3, "temperature": 0.7}
    {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}
    {"custom_id": "sky", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}

The last form is that of OpenAI's batch files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import xxhash

from edgekit.flashload.errors import EdgekitError, OpenFailed
from edgekit.flashload.names import shown, unknown
from edgekit.flashload.sizes import size
from edgekit.tools.json_text import parsed
from edgekit.tools.prompts import MOST_PROMPT_BYTES

_BLOCK_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"  # as some editors begin a file
#: Members of a request in OpenAI's form, and what its addresses end in, with what the body needs then.
_OUTER = ("custom_id", "method", "url", "body")
_ADDRESSES = {"/chat/completions": "messages", "/completions": "prompt"}
#: Members of the body that have other names here, and those that say what is so in any case.
_RENAMED = {"max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens"}
_GIVEN = {"n": (1, None), "stream": (False, None)}


class WrongLine(EdgekitError):
    """A line that is no request."""


@dataclass(frozen=True)
class Line:
    """A line of the input, counted from 1: its bytes without the line end, None where there are more than a
    prompt may have, and the XXH3-64 of all of them.
    """

    number: int
    digest: int
    data: bytes | None


@dataclass(frozen=True)
class Entry:
    """What a line asks for: a prompt as `Model.encode` takes it, and settings by name; or why it asks for
    nothing.
    """

    id: str | int | None
    prompt: str | list[Any] = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


class Input:
    """A file of lines, which is read more than once."""

    def __init__(self, path: Path) -> None:
        """Raises OpenFailed, for what is no regular file too."""
        self.path = path
        try:
            # Asked before it is opened: a FIFO would wait.
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise OpenFailed(
                    f"{path}: is no regular file, and it is read twice; write the lines to a file first"
                )
            self._file: BinaryIO = open(path, "rb")  # noqa: SIM115
        except OSError as error:
            raise OpenFailed(
                f"{path}: cannot open ({error.strerror}); give a file with a JSON object on each line, such "
                'as {"prompt": "Hello"}'
            ) from error

    @property
    def bytes(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def lines(self) -> Iterator[Line]:
        """All lines from the first on; blank ones at the end are none."""
        self._file.seek(0)
        yield from _without_end(_lines(self._file))

    def __enter__(self) -> Input:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _lines(file: BinaryIO) -> Iterator[Line]:
    number = 0
    while data := file.readline(MOST_PROMPT_BYTES + 1):
        number += 1
        if number == 1:
            data = data.removeprefix(_BOM)
        kept = data.rstrip(b"\r\n")
        digest, whole = xxhash.xxh3_64(kept), len(data) <= MOST_PROMPT_BYTES or data.endswith(b"\n")
        while not data.endswith(b"\n") and (data := file.readline(_BLOCK_BYTES)):
            digest.update(data.rstrip(b"\r\n"))
        yield Line(number, digest.intdigest(), kept if whole else None)


def _without_end(lines: Iterator[Line]) -> Iterator[Line]:
    blank = list[Line]()
    for line in lines:
        if line.data is not None and not line.data.strip():
            blank.append(line)
            continue
        yield from blank
        blank.clear()
        yield line


def entry_of(line: Line) -> Entry:
    """What a line asks for. Settings are not looked at."""
    try:
        table = _table(line)
    except WrongLine as error:
        return Entry(None, error=str(error))
    found: str | int | None = None
    try:
        found = _id(table)
        prompt, settings = _asked(table)
    except WrongLine as error:
        return Entry(found, error=str(error))
    return Entry(found, prompt, settings)


def _table(line: Line) -> dict[str, Any]:
    if line.data is None:
        raise WrongLine(f"the line has more than {size(MOST_PROMPT_BYTES)}; give less")
    if not line.data.strip():
        raise WrongLine("the line is empty; write a JSON object with a prompt")
    try:
        table = parsed(line.data, "the line")
    except ValueError as error:
        raise WrongLine(f"{error}; write one JSON object a line") from error
    if not isinstance(table, dict):
        raise WrongLine(f'the line is {shown(table)}; write an object, such as {{"prompt": "Hello"}}')
    return table


def _id(table: Mapping[str, Any]) -> str | int | None:
    if "id" in table and "custom_id" in table:
        raise WrongLine("the line has id and custom_id; leave one out")
    given = table.get("id", table.get("custom_id"))
    if given is not None and (isinstance(given, bool) or not isinstance(given, str | int)):
        raise WrongLine(f"the id is {shown(given)}; use text or an integer")
    return given


def _asked(table: Mapping[str, Any]) -> tuple[str | list[Any], dict[str, Any]]:
    """Prompt and settings."""
    if "body" in table:
        return _of_body(table)
    return _prompt(table), {
        name: value for name, value in table.items() if name not in ("id", "custom_id", "prompt", "messages")
    }


def _prompt(table: Mapping[str, Any]) -> str | list[Any]:
    if ("prompt" in table) == ("messages" in table):
        both = "prompt" in table
        raise WrongLine(
            "the line has prompt and messages; leave one out"
            if both
            else 'the line has no prompt; give "prompt", or "messages" of a chat'
        )
    if "messages" in table:
        given = table["messages"]
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            raise WrongLine(
                f'messages is {shown(given)}; give a list such as [{{"role": "user", "content": "Hello"}}]'
            )
        return given
    given = table["prompt"]
    if not isinstance(given, str | list) or (given and isinstance(given[0], dict)):
        raise WrongLine(f"prompt is {shown(given)}; give text, or token ids")
    return given


def _of_body(table: Mapping[str, Any]) -> tuple[str | list[Any], dict[str, Any]]:
    """Of a request in OpenAI's form."""
    for name in table:
        if name not in _OUTER:
            raise WrongLine(unknown("member", name, _OUTER, "a line with a body"))
    body, method, url = table["body"], table.get("method", "POST"), table.get("url", "/v1/chat/completions")
    if not isinstance(body, dict):
        raise WrongLine(f"body is {shown(body)}; give an object with messages")
    if method != "POST":
        raise WrongLine(f"method is {shown(method)}; only POST is supported")
    needed = next((_ADDRESSES[end] for end in _ADDRESSES if isinstance(url, str) and url.endswith(end)), None)
    if needed is None:
        raise WrongLine(f"url is {shown(url)}; only those ending in {' or '.join(_ADDRESSES)} are supported")
    if needed not in body:
        raise WrongLine(f"the body has no {needed}, which {shown(url)} takes")
    settings = dict[str, Any]()
    for name, value in body.items():
        if name in _GIVEN and value not in _GIVEN[name]:
            raise WrongLine(f"{name} is {shown(value)}; only {shown(_GIVEN[name][0])} is supported")
        if value is None or name in ("model", "messages", "prompt", *_GIVEN):
            continue
        own = str(_RENAMED.get(name, name))
        if own in settings:
            raise WrongLine(f"{own} is given twice, as {name} too; leave one out")
        settings[own] = value
    return _prompt(body), settings
