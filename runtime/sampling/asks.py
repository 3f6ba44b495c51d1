"""Requests of a sampler to its driver.

A sampler is an object with two methods. `next(answer)` says what to do now, after what it asked before has
been done; `answer` is the HeadOutput of a Denoise or Project, and None otherwise. `copy()` is another sampler
in the same state. The families' are in the native core (`edgekit.runtime.sampling.core`); a procedure written
in Python runs on the same engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from edgekit.runtime.sampling.events import Committed, Done, Draft
from edgekit.runtime.sampling.types import Floats, HeadOutput, HeadRequest, Ids


@dataclass(frozen=True)
class Forget:
    """Forget all text, encoded and uncached."""


@dataclass(frozen=True)
class Prefix:
    """Text that is encoded: its positions, and the number that `Sequence.prefix` has for it; 0: any text."""

    length: int
    text: int = 0


@dataclass(frozen=True, eq=False)
class Encode:
    """Encode ids int64 [T] causally behind the prefix. They begin with what is uncached, which is then
    encoded; without it the text would lack the end of the last answer, and is refused.

    `prefix` must be encoded before them, or it is refused; None: whatever is.
    """

    ids: Ids
    prefix: Prefix | None = None


@dataclass(frozen=True, eq=False)
class Denoise:
    """A pass of ids int64 [T] behind the prefix, to be answered. `soft` [T, hidden] is what an earlier answer
    gave, or None; `prefix` is as in Encode.
    """

    ids: Ids
    request: HeadRequest
    soft: Floats | None = None
    prefix: Prefix | None = None


@dataclass(frozen=True, eq=False)
class Project:
    """The pass of before, which was of `ids`, with another request; to be answered. Where another pass has
    run over the same text since it is refused; a sampler of the core has its own run again, behind `prefix`.
    """

    ids: Ids
    request: HeadRequest
    prefix: Prefix | None = None


@dataclass(frozen=True, eq=False)
class Tell:
    """Something to tell: a draft, committed tokens or the end, behind which nothing follows.

    `kept`, int64 [U], is text of a causal prefix that is final and not encoded: it is uncached from now on,
    and no pass sees it before an Encode that begins with it. None: nothing changes.
    """

    event: Draft | Committed | Done
    kept: Ids | None = None


Ask = Forget | Encode | Denoise | Project | Tell


class Procedure(Protocol):
    """A denoising procedure as a state machine."""

    def next(self, answer: HeadOutput | None = None) -> Ask:
        """The next request. Raises what is wrong with the answer to the one before."""

    def copy(self) -> Procedure:
        """Another one in the same state."""
