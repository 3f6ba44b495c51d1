"""What came of a user's prompts: an answer or an error for each, with its times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.names import shown
from edgekit.tools.terminal_text import counted

#: A score is at most so large, for squares are added; and so many seconds and tokens no request has.
MOST_SCORE, _MOST = 1e12, 10**12


@dataclass(frozen=True)
class Asked:
    """A prompt, by its line in the file, and its answer. Seconds are from the request on; of one that failed
    there is an `error` and nothing else. None is not known. Raises ValueError for what none of them can be.
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

    def __post_init__(self) -> None:
        if not _is_count(self.line) or not all(
            isinstance(each, str | None) for each in (self.text, self.error)
        ):
            raise ValueError("a prompt without a line, or an answer that is no text")
        if self.score is not None and not (_is_number(self.score) and abs(self.score) <= MOST_SCORE):
            raise ValueError(f"the score of line {self.line} is {shown(self.score)}")
        for seconds in (self.seconds, self.first_draft_seconds, self.first_text_seconds):
            if seconds is not None and not (_is_number(seconds) and 0 <= seconds <= _MOST):
                raise ValueError(f"line {self.line} took {shown(seconds)} seconds")
        for count in (self.prompt_tokens, self.tokens):
            if count is not None and not _is_count(count):
                raise ValueError(f"line {self.line} has {shown(count)} tokens")


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _is_count(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= _MOST


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
