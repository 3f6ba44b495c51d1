"""An answer in the protocol of chat completions, and when its parts came."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.names import shown
from edgekit.runtime.errors import one_line

#: More than any answer of text; a server may have no end.
MOST_BYTES = 64_000_000
_DONE = b"[DONE]"


class RequestFailed(EdgekitError):
    """One request has no answer; another one may."""


@dataclass(frozen=True)
class Reply:
    """Seconds are from the request on; `first_text_seconds` is None for an answer that came in one piece, and
    for one without text. Tokens are as the server counts them, None: it does not.
    """

    text: str
    seconds: float
    first_text_seconds: float | None
    prompt_tokens: int | None
    tokens: int | None


def reply_of(response: HTTPResponse, started: float, timeout_s: float) -> Reply:
    """The answer, in events or as one object. Raises RequestFailed, and what reading raises."""
    kind = response.headers.get_content_type()
    if kind == "application/json":
        data = response.read(MOST_BYTES)
        if response.length:  # of what was announced
            raise RequestFailed("the answer ended before it was complete")
        return _whole(data, started)
    if kind != "text/event-stream":
        raise RequestFailed(
            f"the answer is {shown(kind)} and no events of chat completions: {shown(_beginning(response))}; "
            "is the address that of an OpenAI-compatible endpoint?"
        )
    return _streamed(response, started, timeout_s)


def _beginning(response: HTTPResponse) -> str:
    return " ".join(response.read(200).decode(errors="replace").split())


def _whole(data: bytes, started: float) -> Reply:
    found = _object(data)
    seconds = time.perf_counter() - started
    choice = _choice(found)
    if choice is None:
        raise RequestFailed(f"the answer has no choice in it: {shown(found)}")
    if not isinstance(message := choice.get("message"), dict):
        raise RequestFailed(f"the answer has no message in it: {shown(found)}")
    return Reply(_text(message), seconds, None, *_usage(found))


def _streamed(response: HTTPResponse, started: float, timeout_s: float) -> Reply:
    pieces, first, finished, chosen = list[str](), None, None, False
    counted: tuple[int | None, int | None] = None, None
    for data in events(response):
        now = time.perf_counter() - started
        if now > timeout_s:
            raise RequestFailed(f"the answer took more than {timeout_s:g} s, see --timeout")
        if data.strip() == _DONE:
            finished = finished or now
            break
        found = _object(data)
        if found.get("usage"):
            counted = _usage(found)
        choice = _choice(found)
        if choice is None:
            continue
        chosen = True
        if text := _text(choice.get("delta")):
            first = now if first is None else first
            pieces.append(text)
        if choice.get("finish_reason"):
            finished = now
    if finished is None:
        raise RequestFailed("the answer ended before it was complete")
    if not chosen:
        raise RequestFailed("the answer has no choice in it, and so no text")
    return Reply("".join(pieces), finished, first, *counted)


def events(response: HTTPResponse) -> Iterator[bytes]:
    """The data of server-sent events, as they come: https://html.spec.whatwg.org/multipage/server-sent-events.html
    without names and numbers, which this protocol does not use.
    """
    lines, read = list[bytes](), 0
    while line := response.readline(MOST_BYTES - read):
        read += len(line)
        line = line.rstrip(b"\r\n")
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        elif not line and lines:
            yield b"\n".join(lines)
            lines.clear()
    if lines:
        yield b"\n".join(lines)


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        said = " ".join(data[:200].decode(errors="replace").split())
        raise RequestFailed(f"the answer is no JSON: {shown(said)}") from error
    if not isinstance(found, dict):
        raise RequestFailed(f"the answer is no JSON object: {shown(found)}")
    if wrong := found.get("error"):
        message = wrong.get("message") if isinstance(wrong, dict) else None
        raise RequestFailed(f"the server says: {one_line(Exception(str(message or wrong)))}")
    return found


def _choice(found: dict[str, Any]) -> dict[str, Any] | None:
    choices = found.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return None


def _text(said: Any) -> str:
    """Of a message or a piece of one; what a model thinks before it answers is none of the answer. Raises
    RequestFailed for what is no text.
    """
    content = said.get("content") if isinstance(said, dict) else None
    if not isinstance(content, str | None):
        raise RequestFailed(f"the answer has {shown(content)} for text")
    return content or ""


def _usage(found: dict[str, Any]) -> tuple[int | None, int | None]:
    usage = found.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")


def _count(usage: dict[str, Any], name: str) -> int | None:
    """None where the server does not count. Raises RequestFailed for what is no number of tokens."""
    given = usage.get(name)
    if given is None or (type(given) is int and 0 <= given <= MOST_BYTES):
        return given
    raise RequestFailed(f"the answer counts {shown(given)} {name}")
