"""Helpers for tests of generations through the C ABI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

OK, INVALID_ARGUMENT, UNSUPPORTED_BUNDLE, NOT_FINITE, STOPPED = 0, 1, 11, 13, 14
INVALID_PROMPT, PROMPT_TOO_LONG = 17, 18


@dataclass
class Outcome:
    """The outcome of a run: events as plain tuples, the error's status and text, and the counters."""

    events: list[tuple[Any, ...]]
    status: int = OK
    message: str = ""
    stats: dict[str, Any] | None = None
    answer: list[int] | None = None


def copy_of(pointer: Any, count: int) -> np.ndarray:
    return np.ctypeslib.as_array(pointer, (count,)).copy() if count else np.empty(0, dtype=np.int64)
