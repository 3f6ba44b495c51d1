"""Text of prompts: what every entry that takes one refuses alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime.sampling.errors import InvalidPrompt
from edgekit.runtime.tokenizer import check_text


@contextmanager
def refused_as_prompt() -> Iterator[None]:
    """Inside the block what the tokenizer calls a wrong request is a wrong prompt. Raises InvalidPrompt."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidPrompt(str(error)) from error


def check_spelled(given: object, what: str) -> None:
    """Raises InvalidPrompt, which begins with `what`, for what is no text, or text that no UTF-8 spells."""
    if not isinstance(given, str):
        raise InvalidPrompt(f"{what} is of type {type(given).__name__}; give text")
    with refused_as_prompt():
        check_text(given, what)


def check_said(given: str | list[Any]) -> None:
    """Raises InvalidPrompt for a prompt without ids or messages, and for text that is blank: a chat template
    would make tokens of it all the same, and the model an answer to nothing.
    """
    if not (given.strip() if isinstance(given, str) else given):
        raise InvalidPrompt("the prompt is empty")
