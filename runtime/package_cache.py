"""Weights of a session that lie in packages: some stay open, the others are opened ahead of their use and
closed behind it.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from edgekit.flashload.errors import RingError
from edgekit.flashload.plan import Plan
from edgekit.flashload.reader import FlashFile
from edgekit.runtime.sampling.types import Floats, Ids
from edgekit.runtime.weights import Passes, WeightStore

#: Opens a package by name. Called by the thread that opens ahead as well.
Open = Callable[[str], Any]


class PackageCache(Passes):
    """Hands out opened packages by name, and rows of the tables in the flash file: a `WeightStore` whose
    units are packages.
    """

    def __init__(
        self, file: FlashFile, plan: Plan, passes: Mapping[str, Sequence[str]], open_package: Open
    ) -> None:
        """`passes`: for each kind of pass, the packages it uses, in order. Raises what `open_package` raises
        for those that stay open, and the errors of reading the tables that stay in memory.
        """
        self.plan = plan
        streamed = {kind: [n for n in names if n not in plan.pinned] for kind, names in passes.items()}
        sizes = {unit.name: unit.nbytes for unit in plan.units}
        self._ahead = OpenAhead(open_package, sizes, plan.ring_bytes) if plan.ring_bytes else None
        super().__init__(streamed, self._ahead)
        self._pinned: dict[str, Any] = {}
        self._tables: WeightStore | None = None
        try:
            self._tables = WeightStore(file, replace(plan, ring_bytes=0), {})
            for unit in plan.units:
                if unit.name in plan.pinned:
                    self._pinned[unit.name] = open_package(unit.name)
        except BaseException:
            with suppress(Exception):  # what was wrong first is what matters
                self.close()
            raise

    def table_rows(self, run: str, rows: Ids) -> Floats:
        """Rows of a vocabulary table's tile in float32."""
        assert self._tables is not None
        return self._tables.table_rows(run, rows)

    def is_pinned(self, name: str) -> bool:
        return name in self._pinned

    @contextmanager
    def use(self, name: str) -> Iterator[Any]:
        """The opened package, valid inside the block. Those that do not stay open must be used in the order
        of the pass.
        """
        if name in self._pinned:
            yield self._pinned[name]
            return
        assert self._ahead is not None
        package = self._ahead.take(name)
        try:
            yield package
        finally:
            self._ahead.release(name, package)

    def statistics(self) -> dict[str, Any]:
        """As `WeightStore.statistics`; bytes read are those of the packages opened during passes."""
        assert self._tables is not None
        found = self._tables.statistics() | {"ring_bytes": self.plan.ring_bytes}
        return found | ({} if self._ahead is None else self._ahead.statistics())

    def close(self) -> None:
        """Close every package and give all memory back. Raises the first error of closing, after the rest."""
        pinned = [package.close for package in self._pinned.values()]
        self._pinned.clear()
        ahead = [] if self._ahead is None else [self._ahead.close]
        tables = [] if self._tables is None else [self._tables.close]
        _all(*ahead, *pinned, *tables)


def _all(*actions: Callable[[], None]) -> None:
    """Do all of it, whatever fails; then raise the first error."""
    errors = []
    for action in actions:
        try:
            action()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


@dataclass
class _Opened:
    name: str
    package: Any = None
    error: BaseException | None = None


class OpenAhead:
    """Opens packages in the order of a schedule, in a thread of its own, as long as those that are open
    together stay within `budget_bytes` (one may always be open).
    """

    def __init__(self, open_package: Open, sizes: Mapping[str, int], budget_bytes: int) -> None:
        self._open, self._sizes, self._budget = open_package, sizes, budget_bytes
        self._queued: deque[str] = deque()
        self._ready: deque[_Opened] = deque()
        self._held = 0  # bytes of packages that are being opened, ready, or taken
        self._opening = False
        self._epoch = 0  # counts cancellations: what is being opened across one is not wanted any more
        self._closed = False
        self._bytes_opened, self._open_seconds, self._wait_seconds = 0, 0.0, 0.0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="edgekit-packages", daemon=True)
        self._thread.start()

    def schedule(self, runs: Iterable[str]) -> None:
        """Queue packages behind those that are queued."""
        with self._changed:
            self._queued.extend(runs)
            self._changed.notify_all()

    def take(self, name: str) -> Any:
        """The next package of the schedule, once it is open; `release` it after use.

        Raises:
            RingError: it is not the next one. What opening it raised.
        """
        started = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._closed or not (self._queued or self._opening))
            self._wait_seconds += time.perf_counter() - started
            if not self._ready or self._ready[0].name != name:
                found = self._ready[0].name if self._ready else "nothing"
                raise RingError(f"package {name} was asked for, the schedule has {found} next")
            opened = self._ready.popleft()
        if opened.error is not None:
            raise opened.error
        return opened.package

    def release(self, name: str, package: Any) -> None:
        """Close a package that was taken."""
        try:
            package.close()
        finally:
            self._freed(name)

    def cancel(self) -> None:
        """Close what was opened ahead, and forget the schedule. Raises the first error of closing, after the
        rest.
        """
        with self._changed:
            self._epoch += 1
            self._queued.clear()
            unused = [opened for opened in self._ready if opened.error is None]
            self._ready.clear()
        _all(*(functools.partial(self.release, opened.name, opened.package) for opened in unused))

    def statistics(self) -> dict[str, Any]:
        """Bytes of packages opened, seconds of opening them and of waiting for it."""
        return {
            "bytes_read": self._bytes_opened,
            "io_seconds": self._open_seconds,
            "io_wait_seconds": self._wait_seconds,
        }

    def close(self) -> None:
        """Close everything that was not taken; the thread ends. Raises as `cancel`."""
        try:
            self.cancel()
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            self._thread.join()

    def _freed(self, name: str) -> None:
        with self._changed:
            self._held -= self._sizes[name]
            self._changed.notify_all()

    def _may_open(self) -> bool:
        if not self._queued:
            return False
        return self._held == 0 or self._held + self._sizes[self._queued[0]] <= self._budget

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._may_open())
                if self._closed:
                    return
                opened, epoch = _Opened(self._queued.popleft()), self._epoch
                self._held += self._sizes[opened.name]
                self._opening = True
            started = time.perf_counter()
            try:
                opened.package = self._open(opened.name)
            except BaseException as error:  # waits for the thread that takes it
                opened.error = error
                self._freed(opened.name)
            with self._changed:
                self._opening = False
                self._open_seconds += time.perf_counter() - started
                if opened.error is None:
                    self._bytes_opened += self._sizes[opened.name]
                wanted = epoch == self._epoch
                if wanted:
                    self._ready.append(opened)
                self._changed.notify_all()
            if not wanted and opened.error is None:
                with suppress(Exception):  # nobody waits for it, and the thread has more to open
                    self.release(opened.name, opened.package)
