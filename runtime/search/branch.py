"""Branches of a search: a sampler each, with what it told and the states that one may go back to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime.sampling import CoreSampler, Draft, Event, Ids, Prefix, Stats

#: The number of what is no text, such as a canvas that was kept: it says nothing about what is kept.
_NO_TEXT: Final = 1


class Text(Protocol):
    """The side of a sequence that a branch moves."""

    uncached: Ids

    @property
    def prefix(self) -> Prefix: ...
    def crop(self, length: int) -> None: ...


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A sampler as it stood after so many denoising steps and told events, and the text that it stands
    behind.
    """

    steps: int
    told: int
    sampler: CoreSampler
    prefix: Prefix = Prefix(0)
    uncached: Ids = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def of(cls, branch: Branch, text: Text) -> Snapshot:
        """The branch as it stands."""
        return cls(branch.steps, len(branch.told), branch.sampler.copy(), text.prefix, text.uncached)

    def resumed(self, text: Text, seed: int, same: bool = False) -> CoreSampler:
        """The sampler once more, with another seed, over a text that is made its own: as far as what is there
        begins like it nothing is encoded again. `same`: it is its own already.
        """
        sampler = self.sampler.copy()
        sampler.reseed(seed)
        if same or _has(text, self.prefix):
            text.uncached = self.uncached
        else:
            sampler.restore()
        return sampler


def _has(text: Text, wanted: Prefix) -> bool:
    """Have a text end where another did; False where that is none of its beginnings."""
    if wanted.text == _NO_TEXT:
        return False
    if text.prefix.length > wanted.length:
        try:
            text.crop(wanted.length)
        except InvalidRequest:  # layers with a window no longer have it
            return False
    return text.prefix == wanted


class Snapshots:
    """States of a branch, at most so many of them: when there are more, every other one is dropped. The first
    one stays.
    """

    def __init__(self, most: int) -> None:
        self._most, self._stride = most, 1
        self._kept: list[Snapshot] = []

    def wants(self, steps: int) -> bool:
        """Whether the state after so many steps is to be kept."""
        new = not self._kept or self._kept[-1].steps < steps
        return self._most > 0 and new and steps % self._stride == 0

    def add(self, snapshot: Snapshot) -> None:
        self._kept.append(snapshot)
        while len(self._kept) > self._most:
            self._stride *= 2
            self._kept = [s for i, s in enumerate(self._kept) if not i or s.steps % self._stride == 0]

    @property
    def steps(self) -> list[int]:
        """Those of the states that are kept."""
        return [snapshot.steps for snapshot in self._kept]

    def at(self, steps: int) -> Snapshot | None:
        """The last one after at most so many steps."""
        return next((each for each in reversed(self._kept) if each.steps <= steps), None)

    def clear(self) -> None:
        self._kept.clear()


@dataclass(eq=False)
class Branch:
    """A generation of a search. `told` are its events, those of the steps that it shares first; each with the
    bytes that had been read by then. `forked_at`: steps that it has in common with its `parent`.
    """

    number: int
    seed: int
    sampler: CoreSampler
    snapshots: Snapshots
    parent: int | None = None
    forked_at: int = 0
    told: list[tuple[Event, int]] = field(default_factory=list)
    score: float | None = None
    stats: Stats | None = None  # of one that is finished
    pruned_at: int | None = None

    @property
    def steps(self) -> int:
        """Denoising steps so far, shared ones among them."""
        return self.sampler.stats.denoising_steps if self.pruned_at is None else self.pruned_at

    @property
    def events(self) -> list[Event]:
        return [event for event, _ in self.told]

    def forget_way(self) -> None:
        """Keep nothing of the way but where it led: what is committed, and the last draft."""
        self.snapshots.clear()
        drafts = [i for i, (event, _) in enumerate(self.told) if isinstance(event, Draft)]
        dropped = set(drafts[:-1])
        self.told = [each for i, each in enumerate(self.told) if i not in dropped]

    @property
    def rank(self) -> tuple[float, int]:
        """The smallest is the best; of equal ones the first."""
        assert self.score is not None, "it was scored"
        return -self.score, self.number
