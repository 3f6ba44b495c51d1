"""A prompt of a user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Question:
    """Text, or the messages of a chat. `line` is that of its file, counted from 1; `answer` is what is
    expected, None: nothing is.
    """

    line: int
    prompt: str | Sequence[Mapping[str, Any]]
    answer: Any = None
