"""Work that repeats: done once as it is, then captured, then replayed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

#: Captured pieces of work that are kept, the ones that were used last: a graph takes memory on the device.
MOST_GRAPHS = 512


class Capture(Protocol):
    """How a device captures."""

    def __call__(self, work: Callable[[], T]) -> Callable[[], T] | None:
        """See `Device.capture`."""


class Graphs:
    """Pieces of work by what they depend on: program, shapes, and every address that they read or write."""

    def __init__(self, capture: Capture, most: int = MOST_GRAPHS) -> None:
        """`capture` makes of work what repeats it, without doing it; None: it cannot."""
        self._capture, self._most = capture, most
        self._known: OrderedDict[Hashable, Callable[[], Any] | None] = OrderedDict()  # None: it was done once
        self.captured = self.replayed = 0

    def __len__(self) -> int:
        return len(self._known)

    def run(self, key: Hashable, work: Callable[[], T]) -> T:
        """Do the work of that key. The first time shows what it allocates and compiles, so the second one is
        captured. What it gives is written over when it is done again.
        """
        if key not in self._known:
            made = work()
            self._known[key] = None
            while len(self._known) > self._most:
                self._known.popitem(last=False)
            return made
        self._known.move_to_end(key)
        replay: Callable[[], T] | None = self._known[key]
        if replay is None:
            replay = self._capture(work)
            self.captured += replay is not None
            self._known[key] = replay = replay or work
        else:
            self.replayed += 1
        return replay()

    def clear(self) -> None:
        """Forget all: addresses stand for something else."""
        self._known.clear()
