"""Requests of a sampler to its driver.

A sampler is an object with two methods. `next(answer)` says what to do now, after what it asked before has
been done; `answer` is the HeadOutput of a Denoise or Project, a list of them for a Pass, and None otherwise.
`copy()` is another sampler in the same state. The families' are in the native core
(`edgekit.runtime.sampling.core`); a procedure written in Python runs on the same engines.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """Encode ids int64 [T] behind the prefix, as `prefill` does. They begin with what is uncached, which is
    then encoded; without it the text would lack the end of the last answer, and is refused.

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


@dataclass(frozen=True)
class SeenRows:
    """Rows first..first+count that a segment sees: kept positions of its sequence (`segment` None), or rows
    of an earlier segment of the pass.
    """

    segment: int | None
    first: int
    count: int


@dataclass(frozen=True, eq=False)
class PassRows:
    """A segment of a pass: ids int64 [T] at the positions from `at` on, which see the same.

    `block` 0: a canvas, whose rows all see each other; n: text in blocks of n rows that see each other and
    what is not behind them, 1 is causal. `seen`: rows before its own, None: all that is kept before `at`.
    `keep`: keys and values of its first `keep_count` rows, 0: of all, are kept from `at` on, in place of
    those there. `request`, None: nothing is asked of it. `adapter`: number of the one that its rows are
    computed with, 0: that of the session. `positions` int64 [T], None: from `at` on; see `Segment`.
    """

    ids: Ids
    at: int
    request: HeadRequest | None = None
    block: int = 0
    seen: Sequence[SeenRows] | None = None
    keep: bool = False
    adapter: int = 0
    positions: Ids | None = None
    keep_count: int = 0


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass of several segments of the text, to be answered by a list: the answers to those that have a
    request. What is uncached is among what they keep. `prefix` is as in Encode.
    """

    segments: Sequence[PassRows]
    prefix: Prefix | None = None


@dataclass(frozen=True)
class Crop:
    """Crop the prefix to `length` positions, where it is longer. Nothing is uncached then."""

    length: int


@dataclass(frozen=True, eq=False)
class Tell:
    """Something to tell: a draft, committed tokens or the end, behind which nothing follows.

    `kept`, int64 [U], is text of a causal prefix that is final and not encoded: it is uncached from now on,
    and no pass sees it before an Encode that begins with it. None: nothing changes.
    """

    event: Draft | Committed | Done
    kept: Ids | None = None


Ask = Forget | Encode | Denoise | Project | Pass | Crop | Tell
Answer = HeadOutput | Sequence[HeadOutput]


class Procedure(Protocol):
    """A denoising procedure as a state machine."""

    def next(self, answer: Answer | None = None) -> Ask:
        """The next request. Raises what is wrong with the answer to the one before."""

    def copy(self) -> Procedure:
        """Another one in the same state."""
