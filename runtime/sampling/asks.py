"""Requests of a sampler to its driver.

A sampler is an object with two methods. `next(answer)` says what to do now, after what it asked before has
been done; `answer` is the HeadOutput of a Denoise or Project, and None otherwise. `copy()` is another sampler
in the same state. The families' are in the native core (`edgekit.runtime.sampling.core`); a procedure written
in Python runs on the same engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from edgekit.flashload.errors import InvalidRequest
from edgekit.flashload.names import shown
from edgekit.runtime.sampling.events import Committed, Done, Draft
from edgekit.runtime.sampling.types import Floats, HeadOutput, HeadRequest, Ids


@dataclass(frozen=True)
class Forget:
    """Forget all text, encoded and uncached."""


@dataclass(frozen=True, eq=False)
class Encode:
    """Encode ids int64 [T] causally behind the prefix. They begin with what is uncached, which is then
    encoded; without it the text would lack the end of the last answer, and is refused."""

    ids: Ids


@dataclass(frozen=True, eq=False)
class Denoise:
    """A pass of ids int64 [T] behind the prefix, to be answered. `soft` [T, hidden] is what an earlier answer
    gave, or None."""

    ids: Ids
    request: HeadRequest
    soft: Floats | None = None


@dataclass(frozen=True, eq=False)
class Project:
    """The pass of before, which was of `ids`, with another request; to be answered."""

    ids: Ids
    request: HeadRequest


@dataclass(frozen=True, eq=False)
class Tell:
    """Something to tell: a draft, committed tokens or the end, behind which nothing follows.

    `kept`, int64 [U], is text of a causal prefix that is final and not encoded: it is uncached from now on.
    None: nothing changes.
    """

    event: Draft | Committed | Done
    kept: Ids | None = None


Ask = Forget | Encode | Denoise | Project | Tell


def wrong_ask(sampler: object, ask: object) -> InvalidRequest:
    """The error for what a procedure must not ask."""
    return InvalidRequest(
        f"{type(sampler).__name__}.next returned {shown(ask)}; it must return one of Forget, Encode, "
        "Denoise, Project (of a model that projects), or Tell with a Draft, Committed or Done"
    )


def check_procedure(given: object) -> None:
    """Raises InvalidRequest for what no driver can ask."""
    if isinstance(given, type) or not callable(getattr(given, "next", None)):
        raise InvalidRequest(
            f"the sampler is {shown(given)}; pass an object with a method next, see Procedure"
        )


class Procedure(Protocol):
    """A denoising procedure as a state machine."""

    def next(self, answer: HeadOutput | None = None) -> Ask:
        """The next request. Raises what is wrong with the answer to the one before."""

    def copy(self) -> Procedure:
        """Another one in the same state."""
