"""What came of a user's prompts: an answer or an error for each, with its times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

from edgekit.flashload.errors import EdgekitError
from edgekit.tools.terminal_text import counted


@dataclass(frozen=True)
class Asked:
    """A prompt, by its line in the file, and its answer. Seconds are from the request on; of one that failed
    there is an `error` and nothing else. None is not known.
    """

    line: int
    text: str | None = None
    error: str | None = None
    score: float | None = None
    seconds: float | None = None
    first_draft_seconds: float | None = None
    #: The first text that is final.
    first_text_seconds: float | None = None
    prompt_tokens: int | None = None
    tokens: int | None = None


def as_table(asked: Iterable[Asked]) -> dict[str, Any]:
    """A table of a report."""
    return {"columns": [each.name for each in fields(Asked)], "rows": [list(astuple(each)) for each in asked]}


def of_table(table: Mapping[str, Any]) -> list[Asked]:
    """What `as_table` made a table of. Raises LookupError, TypeError and ValueError for any other."""
    return [Asked(**dict(zip(table["columns"], row, strict=True))) for row in table["rows"]]


def check_any(asked: Iterable[Asked]) -> None:
    """Raises EdgekitError where all have failed."""
    errors = [each.error for each in asked]
    if all(errors):
        raise EdgekitError(f"none of {counted(len(errors), 'prompt')} has an answer: {errors[0]}")
