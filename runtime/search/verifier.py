"""Verifiers: what says how good an answer is, the higher the better."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.names import shown
from edgekit.runtime.errors import one_line
from edgekit.runtime.sampling import InvalidOption
from edgekit.runtime.search.attempt import Attempt

if TYPE_CHECKING:
    from edgekit.runtime.search.scorer import Scorer


class VerifierFailed(EdgekitError):
    """A verifier raised, or gave what is no score."""


class Verifier:
    """Scores attempts. A subclass has `scores`, and may have the rest."""

    name = ""
    #: Of an answer that nothing is better than: a search that goes back need not go on. None: never.
    enough: float | None = None
    #: Sequences of the model that it needs for itself.
    sequences = 0

    def begin(self, model: Scorer) -> None:
        """Told before the first attempt: the model that is searched."""

    def scores(self, attempts: Sequence[Attempt]) -> Sequence[float]:
        """A score for each."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what it holds."""


class Function(Verifier):
    """A function of an attempt that returns its score, or whether it is right."""

    def __init__(self, function: Callable[[Attempt], float], name: str | None = None) -> None:
        self._function = function
        self.name = name or str(getattr(function, "__qualname__", type(function).__name__))

    def scores(self, attempts: Sequence[Attempt]) -> Sequence[float]:
        return [self._function(attempt) for attempt in attempts]


class Json(Verifier):
    """1 for JSON. What is not finished has less: one half if it may still become JSON, and otherwise of that
    the part that may.
    """

    name, enough = "json", 1.0

    def scores(self, attempts: Sequence[Attempt]) -> Sequence[float]:
        return [_json_score(attempt) for attempt in attempts]


def _json_score(attempt: Attempt) -> float:
    text = attempt.text if attempt.final else attempt.text.partition("[[")[0] or attempt.text
    whole = text == attempt.text
    try:
        json.loads(text, parse_constant=_no_constant)
        return 1.0 if whole else 0.5
    except json.JSONDecodeError as error:
        if attempt.final:
            return 0.0
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
            return 0.5
        return 0.5 * error.pos / len(text)
    except (RecursionError, ValueError):
        # Too deep; a number of too many digits; NaN, which is none of JSON's.
        return 0.0


def _no_constant(name: str) -> float:
    raise ValueError(name)


class Matches(Verifier):
    """1 where a regular expression is found in the text, and 0 elsewhere."""

    enough = 1.0

    def __init__(self, pattern: str) -> None:
        """Raises InvalidOption for what is no regular expression."""
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise InvalidOption(f"the verifier regex:{pattern} is no regular expression: {error}") from error
        self.name = f"regex:{pattern}"

    def scores(self, attempts: Sequence[Attempt]) -> Sequence[float]:
        return [float(self._pattern.search(attempt.text) is not None) for attempt in attempts]


class OwnModel(Verifier):
    """What the searched model itself says: its "likelihood" or its "confidence", see `Scorer`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._model: Scorer | None = None

    def begin(self, model: Scorer) -> None:
        self._model = model

    def scores(self, attempts: Sequence[Attempt]) -> Sequence[float]:
        assert self._model is not None, "the search has begun"
        return self._model.scores(self.name, [attempt.ids for attempt in attempts])


def checked_scores(verifier: Verifier, attempts: Sequence[Attempt]) -> list[float]:
    """Scores of a verifier. Raises VerifierFailed, naming it, for what it raises and for what is no score."""
    what = f"the verifier {verifier.name}"
    scores = checked(what, lambda: verifier.scores(attempts))
    if len(scores) != len(attempts):
        raise VerifierFailed(f"{what} gave {len(scores)} scores of {len(attempts)}")
    return scores


def checked(what: str, scores_of: Callable[[], Sequence[Any]]) -> list[float]:
    """The scores that a call gives. Raises VerifierFailed, which begins with `what`, for what it raises and
    for what is no score.
    """
    try:
        scores = list(scores_of())
    except (EdgekitError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also what is meant to end a process, which is the caller's
        raise VerifierFailed(f"{what} raised {type(error).__name__}: {one_line(error)}") from error
    for score in scores:
        if inspect.iscoroutine(score):
            score.close()  # or Python warns that nobody awaited it
    found = []
    for score in scores:
        number = _number(score)
        if number is None:
            raise VerifierFailed(f"{what} returned {shown(score)}; use a finite number, or true or false")
        found.append(number)
    return found


def _number(score: Any) -> float | None:
    """None where it is no finite number; how it becomes one is asked once."""
    try:
        found = None if isinstance(score, str | bytes) else float(score)
    except Exception:
        return None
    return found if found is not None and math.isfinite(found) else None
