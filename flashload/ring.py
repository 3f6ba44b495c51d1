"""A circular arena that is filled with runs ahead of the compute that uses them.

The schedule is a queue of runs. As long as the arena has room for the next one, its read is started; the
threads of the `FlashFile` do the reading and verifying and start what follows. The consumer takes runs in
scheduled order and releases them when nothing reads their bytes any more.

Threads: one consumer calls `take`; `schedule`, `release` and `cancel` may come from any thread. A released
run's memory is overwritten by the next read, so release only after the last kernel that uses it is done.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from types import TracebackType

import numpy as np

from edgekit.flashload.buffers import AlignedBuffer
from edgekit.flashload.errors import BudgetExceeded, Cancelled, EdgekitError, InvalidRequest, RingError
from edgekit.flashload.format import RUN_ALIGNMENT, Run, tensor_views
from edgekit.flashload.reader import FlashFile, PendingRead


class _State(Enum):
    QUEUED = "queued"  # no memory yet
    READING = "reading"
    LOADED = "loaded"
    FAILED = "failed"  # memory given up, the error waits for take()
    TAKEN = "taken"
    GONE = "gone"  # released or cancelled


@dataclass
class _Entry:
    run: Run
    state: _State = _State.QUEUED
    start: int = -1
    buffer: memoryview | None = None
    pending: PendingRead | None = None
    error: BaseException | None = None
    in_flight: bool = False

    @property
    def holds_memory(self) -> bool:
        # A cancelled read may still be writing: its memory is not free before its threads are done.
        return self.in_flight or self.state in (_State.LOADED, _State.TAKEN)


@dataclass(eq=False)
class Loaded:
    """A run in memory. `views` are read-only and valid until `release`."""

    run: Run
    views: dict[str, np.ndarray]
    buffer: memoryview
    _entry: _Entry = field(repr=False)


@dataclass
class RingStats:
    """Counters of a ring.

    `read_seconds`: time during which at least one read was under way, so bytes_read / read_seconds is the
    achieved rate. `wait_seconds`: time `take` blocked. `fallbacks`: reads that left the fast path.
    """

    bytes_read: int = 0
    runs_read: int = 0
    read_seconds: float = 0.0
    wait_seconds: float = 0.0
    fallbacks: int = 0


class Ring:
    """Read-ahead of one `FlashFile` within `ring_bytes` of memory (rounded down to a multiple of 16 KiB).

    A run occupies contiguous memory, so with runs of different sizes some bytes stay unused where the arena
    wraps. With room for the two largest runs, reading overlaps compute; with room for one it merely works.

    `concurrent_release`: releases come from another thread than takes (GPU fences). Otherwise a `take` that
    could only be served after a release raises RingError instead of blocking for ever.

    The file stays the caller's to close, after the ring. Raises InvalidRequest, BudgetExceeded.
    """

    def __init__(self, file: FlashFile, ring_bytes: int, *, concurrent_release: bool = False) -> None:
        self.capacity = ring_bytes - ring_bytes % RUN_ALIGNMENT
        if self.capacity <= 0:
            raise InvalidRequest(
                f"a ring of {ring_bytes} bytes is too small; it needs at least {RUN_ALIGNMENT}"
            )
        self._file = file
        self._arena = AlignedBuffer(self.capacity)
        self._concurrent_release = concurrent_release
        self._cond = threading.Condition()
        self._order: deque[_Entry] = deque()  # scheduled and not taken, in order
        self._queue: deque[_Entry] = deque()  # the part of it that has no memory yet
        self._live: deque[_Entry] = deque()  # has memory, in the order it was given out
        self._head = 0  # where the next run is placed
        self._reading = 0
        self._busy_since = 0.0
        self._stats = RingStats()
        self._fallbacks_before = file.stats.fallbacks
        self._closed = False

    @property
    def stats(self) -> RingStats:
        """A snapshot of the counters."""
        with self._cond:
            busy = time.perf_counter() - self._busy_since if self._reading else 0.0
            return replace(
                self._stats,
                read_seconds=self._stats.read_seconds + busy,
                fallbacks=self._file.stats.fallbacks - self._fallbacks_before,
            )

    # --- consumer ----------------------------------------------------------------------------------------

    def schedule(self, runs: Iterable[str]) -> None:
        """Append runs to the read-ahead queue; a run may be scheduled many times.

        Raises InvalidRequest for an unknown run and BudgetExceeded for one larger than the ring; nothing is
        scheduled then.
        """
        entries = [_Entry(self._file.run(name)) for name in runs]
        for entry in entries:
            if entry.run.length > self.capacity:
                raise BudgetExceeded(
                    f"run {entry.run.name} has {entry.run.length} bytes, the ring {self.capacity}; "
                    f"give the ring at least {entry.run.length} bytes",
                    entry.run.length,
                )
        with self._cond:
            self._require_open()
            self._order.extend(entries)
            self._queue.extend(entries)
            self._pump()

    def take(self, run: str) -> Loaded:
        """Wait for the next scheduled run, which must be `run`.

        Raises the typed error of its read (the run then leaves the schedule, the ones after it stay),
        RingError when another run is next or when only a release could make room, and Cancelled when the
        schedule was dropped meanwhile.
        """
        with self._cond:
            self._require_open()
            if not self._order:
                raise RingError(f"run {run} was taken but nothing is scheduled; call schedule() first")
            entry = self._order[0]
            if entry.run.name != run:
                raise RingError(f"run {run} was taken but {entry.run.name} is next in the schedule")
            started = time.perf_counter()
            try:
                while entry.state in (_State.QUEUED, _State.READING):
                    if (
                        entry.state is _State.QUEUED
                        and not self._concurrent_release
                        and self._only_taken_left()
                    ):
                        held = ", ".join(live.run.name for live in self._live if live.state is _State.TAKEN)
                        raise RingError(
                            f"run {run} has no room while these are taken: {held}; release them first or "
                            "give the ring more memory"
                        )
                    self._cond.wait()
            finally:
                self._stats.wait_seconds += time.perf_counter() - started
            if entry.state is _State.GONE:
                raise Cancelled(f"run {run} was dropped from the schedule while it was waited for")
            self._order.popleft()
            if entry.error is not None:
                entry.state = _State.GONE
                raise entry.error
            if entry.buffer is None:
                raise RingError(f"run {run} is loaded without memory; this is a bug in the ring")
            entry.state = _State.TAKEN
            return Loaded(entry.run, tensor_views(entry.run, entry.buffer), entry.buffer, entry)

    def release(self, loaded: Loaded) -> None:
        """Give the memory of a taken run back. Order does not matter. Raises RingError when done twice."""
        with self._cond:
            if loaded._entry.state is not _State.TAKEN:
                raise RingError(f"run {loaded.run.name} is not taken; release every take() once")
            loaded._entry.state = _State.GONE
            loaded._entry.buffer = None
            self._trim()
            self._pump()
            self._cond.notify_all()

    def cancel(self) -> None:
        """Drop everything that is scheduled and not taken. Returns when no dropped read writes any more.

        Taken runs stay valid until released; new runs may be scheduled afterwards.
        """
        with self._cond:
            dropped = list(self._order)
            self._order.clear()
            self._queue.clear()
            for entry in dropped:
                entry.state = _State.GONE
                entry.buffer = None
                if entry.pending is not None and entry.in_flight:
                    entry.pending.cancel()
            self._trim()
            self._cond.notify_all()
            while any(entry.in_flight for entry in dropped):
                self._cond.wait()

    def close(self) -> None:
        """Cancel and return the memory. Views still held keep the arena alive until they die."""
        with self._cond:
            if self._closed:
                return
            self._closed = True
        self.cancel()
        with self._cond:
            self._live.clear()
            self._arena.close()

    def __enter__(self) -> Ring:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise RingError("the ring is closed")

    def _only_taken_left(self) -> bool:
        return all(entry.state is _State.TAKEN for entry in self._live if entry.holds_memory)

    # --- filling (the lock is held) ----------------------------------------------------------------------

    def _pump(self) -> None:
        """Start reads as long as there is room."""
        while self._queue and not self._closed:
            entry = self._queue[0]
            start = self._place(entry.run.length)
            if start is None:
                return
            self._queue.popleft()
            entry.start = start
            entry.buffer = self._arena.slice(start, entry.run.length)
            entry.state = _State.READING
            self._head = start + entry.run.length
            self._live.append(entry)
            try:
                self._start(entry)
            except EdgekitError as error:  # the file was closed under us: take() tells
                entry.state, entry.error, entry.buffer = _State.FAILED, error, None
                self._trim()

    def _start(self, entry: _Entry) -> None:
        pending = self._file.submit(entry.run, entry.buffer, lambda done: self._read_ended(entry, done))
        # The reader's callback needs the lock that is held here, so the read cannot have ended yet.
        entry.pending = pending
        entry.in_flight = True
        if self._reading == 0:
            self._busy_since = time.perf_counter()
        self._reading += 1

    def _read_ended(self, entry: _Entry, done: PendingRead) -> None:
        with self._cond:
            entry.in_flight = False
            entry.pending = None
            self._reading -= 1
            if self._reading == 0:
                self._stats.read_seconds += time.perf_counter() - self._busy_since
            if done.error is None:
                self._stats.bytes_read += entry.run.length
                self._stats.runs_read += 1
            if entry.state is _State.READING:
                if done.error is None:
                    entry.state = _State.LOADED
                else:
                    entry.state, entry.error, entry.buffer = _State.FAILED, done.error, None
            self._trim()
            self._pump()
            self._cond.notify_all()

    def _place(self, length: int) -> int | None:
        """Start of a free span of that length at the head or, when that is past the end, at 0."""
        if not self._live:
            return 0
        tail = self._live[0].start
        if self._head > tail:  # in use: tail..head
            if self.capacity - self._head >= length:
                return self._head
            return 0 if tail >= length else None
        return self._head if tail - self._head >= length else None  # in use: tail..end and 0..head

    def _trim(self) -> None:
        """Forget memory at either end of the used span that nobody holds."""
        while self._live and not self._live[0].holds_memory:
            self._live.popleft()
        while self._live and not self._live[-1].holds_memory:
            self._live.pop()
        self._head = self._live[-1].start + self._live[-1].run.length if self._live else 0

    # --- tests -------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise RingError when the ring's bookkeeping contradicts itself."""
        with self._cond:
            problems: list[str] = []
            spans = sorted((entry.start, entry.start + entry.run.length) for entry in self._live)
            for begin, end in spans:
                if begin < 0 or end > self.capacity or begin % RUN_ALIGNMENT:
                    problems.append(f"span {begin}..{end} is outside the arena or unaligned")
            for (_, end), (begin, _) in zip(spans, spans[1:], strict=False):
                if begin < end:
                    problems.append(f"spans overlap at {begin}")
            starts = [entry.start for entry in self._live]
            if sum(later < earlier for earlier, later in zip(starts, starts[1:], strict=False)) > 1:
                problems.append("the used span wraps more than once")
            waiting = [entry for entry in self._order if entry.state is _State.QUEUED]
            if waiting != list(self._queue):
                problems.append("the queue is not the waiting part of the schedule")
            if sum(entry.in_flight for entry in self._live) != self._reading:
                problems.append(f"{self._reading} reads are counted, not those in flight")
            live = {id(entry) for entry in self._live}
            for entry in self._order:
                placed = entry.state in (_State.READING, _State.LOADED)
                if placed != (id(entry) in live and entry.buffer is not None):
                    problems.append(f"run {entry.run.name} is {entry.state.value} with the wrong memory")
                if (entry.error is not None) != (entry.state is _State.FAILED):
                    problems.append(f"run {entry.run.name} is {entry.state.value} with the wrong error")
            if problems:
                raise RingError("; ".join(problems))
