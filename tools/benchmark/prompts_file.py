"""Prompts of a user's own: a file of JSON lines, each with `prompt` or `messages`, and what is expected."""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.files import read_table
from edgekit.flashload.names import shown
from edgekit.runtime.api.prompt import held, messages_of
from edgekit.runtime.sampling.errors import InvalidPrompt
from edgekit.tools.benchmark.question import Question
from edgekit.tools.json_text import parsed
from edgekit.tools.prompts import decoded

#: Of a file: who reads a report refuses more than a million values.
MOST_QUESTIONS = 50_000
_MOST_BYTES = 1 << 30


class NoPrompts(EdgekitError):
    """A file holds something else than prompts."""


def read_questions(path: Path, limit: int | None = None) -> list[Question]:
    """The prompts of a file, or the first `limit` of them. Raises NoPrompts, Failure for what is no text,
    OpenFailed, and MalformedFile for more than any such file.
    """
    data = read_table(path, _MOST_BYTES, "file of prompts", "give another file")
    lines = data.removeprefix(codecs.BOM_UTF8).split(b"\n")
    found = list[Question]()
    for number, line in enumerate(lines, 1):
        if len(found) == limit:
            break
        where = f"{path}: line {number}"
        if text := decoded(line, where).strip():
            if len(found) == MOST_QUESTIONS:
                raise NoPrompts(f"{path}: has more than {MOST_QUESTIONS} prompts; ask fewer by --limit")
            found.append(_question(text, number, where))
    if not found:
        raise NoPrompts(f'{path}: has no prompts; write lines such as {{"prompt": "2+2?", "answer": "4"}}')
    return found


def _question(text: str, number: int, where: str) -> Question:
    try:
        given = parsed(text.encode(), where)
    except ValueError as error:
        raise NoPrompts(f"{error}; write one JSON object a line") from error
    if not isinstance(given, dict):
        raise NoPrompts(f'{where} is {shown(given)}; write an object with "prompt" or "messages"')
    if ("prompt" in given) == ("messages" in given):
        many = "both" if "prompt" in given else "neither"
        raise NoPrompts(f'{where} has {many} of "prompt" and "messages"; give one of them')
    prompt = given.get("prompt", given.get("messages"))
    if not isinstance(prompt, str if "prompt" in given else list):
        wanted = "text" if "prompt" in given else "a list of messages"
        raise NoPrompts(f"{where}: the prompt is {shown(prompt)}; give {wanted}")
    try:
        if messages_of(held(prompt)) is None:
            raise InvalidPrompt("the messages are no objects with a role and a content")
    except InvalidPrompt as error:
        raise NoPrompts(f"{where}: {error}") from error
    return Question(number, prompt, given.get("answer"))


def digest(questions: Sequence[Question]) -> str:
    """Equal for equal prompts with equal answers."""
    text = json.dumps([[each.prompt, each.answer] for each in questions], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
