"""Work that repeats: done once as it is, then captured, then replayed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from edgekit.runtime.engines.torch.device import Work

#: Captured pieces of work that are kept, the ones that were used last: a graph takes memory on the device.
MOST_GRAPHS = 512


class Graphs:
    """Pieces of work by what they depend on: program, shapes, and every address that they read or write."""

    def __init__(self, capture: Callable[[Work], Work | None], most: int = MOST_GRAPHS) -> None:
        """`capture` makes of work what repeats it, without doing it; None: it cannot."""
        self._capture, self._most = capture, most
        self._known: OrderedDict[Hashable, Work | None] = OrderedDict()  # None: it was done once
        self.captured = self.replayed = 0

    def __len__(self) -> int:
        return len(self._known)

    def run(self, key: Hashable, work: Work) -> None:
        """Do the work of that key. The first time shows what it allocates and compiles, so the second one is
        captured.
        """
        if key not in self._known:
            work()
            self._known[key] = None
            while len(self._known) > self._most:
                self._known.popitem(last=False)
            return
        self._known.move_to_end(key)
        replay = self._known[key]
        if replay is None:
            replay = self._capture(work)
            self.captured += replay is not None
            self._known[key] = replay = replay or work
        else:
            self.replayed += 1
        replay()

    def clear(self) -> None:
        """Forget all: addresses stand for something else."""
        self._known.clear()
