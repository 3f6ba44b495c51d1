"""Weights of a session: pinned runs, runs that stream through the read-ahead ring, and single rows of a
table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from edgekit.flashload.buffers import AlignedBuffer
from edgekit.flashload.plan import Plan
from edgekit.flashload.reader import FlashFile
from edgekit.flashload.ring import Ring
from edgekit.runtime.sampling.types import Floats, Ids

Arrays = dict[str, np.ndarray]


class Queue(Protocol):
    """What loads the units of a schedule ahead of their use."""

    def schedule(self, runs: Iterable[str]) -> None: ...

    def cancel(self) -> None: ...


class Passes:
    """A store that loads units for a cycle of passes: its queue is kept one pass ahead."""

    def __init__(self, passes: Mapping[str, Sequence[str]], queue: Queue | None) -> None:
        """`passes`: for each kind of pass, the units that are loaded for it, in order."""
        self._passes, self._queue = passes, queue
        self._expected: deque[str] = deque()

    def begin(self, kind: str, then: str | None) -> None:
        """Start a pass; `then` is the kind of pass that most likely follows, for reading ahead."""
        if self._queue is None:
            return
        if not self._expected or self._expected[0] != kind:
            self.idle()
            self._queue.schedule(self._passes[kind])
        else:
            self._expected.popleft()
        if then is not None and not self._expected:
            self._queue.schedule(self._passes[then])
            self._expected.append(then)

    def idle(self) -> None:
        """Stop reading ahead: nothing is expected to follow."""
        self._expected.clear()
        if self._queue is not None:
            self._queue.cancel()


class WeightStore(Passes):
    """Hands out the tensors of runs, by short name (without the run's own).

    A pass over the model is a sequence of runs fixed in advance; the streamed ones among them are read
    ahead while others compute, and reading goes on into the pass that is expected next.
    """

    def __init__(self, file: FlashFile, plan: Plan, passes: Mapping[str, Sequence[str]]) -> None:
        """`passes`: for each kind of pass, the runs it uses, in order. Raises the errors of reading the
        pinned runs.
        """
        self._file, self.plan = file, plan
        streamed = {kind: [r for r in runs if r not in plan.pinned] for kind, runs in passes.items()}
        self._ring = Ring(file, plan.ring_bytes) if plan.ring_bytes else None
        super().__init__(streamed, self._ring)
        self._buffers: list[AlignedBuffer] = []
        self._pinned: dict[str, Arrays] = {}
        try:
            for run in file.runs:
                if run in plan.pinned:
                    buffer, views = file.load(run)
                    self._buffers.append(buffer)
                    self._pinned[run] = _short(run, views)
        except BaseException:
            self.close()
            raise

    def is_pinned(self, run: str) -> bool:
        return run in self._pinned

    @contextmanager
    def use(self, run: str) -> Iterator[Arrays]:
        """The tensors of a run, valid inside the block. Streamed runs must be used in the order of the
        pass.
        """
        if run in self._pinned:
            yield self._pinned[run]
            return
        assert self._ring is not None
        loaded = self._ring.take(run)
        try:
            yield _short(run, loaded.views)
        finally:
            self._ring.release(loaded)

    def rows(self, run: str, tensor: str, rows: Ids) -> np.ndarray:
        """Rows of one tensor of a run, from memory where it is pinned, else read one by one."""
        if run in self._pinned:
            return self._pinned[run][tensor][rows]
        return self._file.read_rows(f"{run}.{tensor}", rows)

    def table_rows(self, run: str, rows: Ids) -> Floats:
        """Rows of a vocabulary table's tile in float32."""
        held = [t.name.removeprefix(run + ".") for t in self._file.run(run).tensors]
        return table_floats({n: self.rows(run, n, rows) for n in held if n != "biases"})

    def statistics(self) -> dict[str, Any]:
        """Bytes read while streaming, seconds of reading and of waiting for it, and how the file is read."""
        stats = None if self._ring is None else self._ring.stats
        return {
            "io_mode": self._file.io_mode,
            "pinned_bytes": self.plan.pinned_bytes,
            "ring_bytes": self.plan.ring_bytes,
            "streamed_bytes_per_step": self.plan.streamed_bytes,
            "bytes_read": 0 if stats is None else stats.bytes_read,
            "io_seconds": 0.0 if stats is None else stats.read_seconds,
            "io_wait_seconds": 0.0 if stats is None else stats.wait_seconds,
        }

    def close(self) -> None:
        """Give all memory back."""
        if self._ring is not None:
            self._ring.close()
        self._pinned.clear()
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()

    def __enter__(self) -> WeightStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _short(run: str, views: dict[str, np.ndarray]) -> Arrays:
    return {name.removeprefix(run + "."): value for name, value in views.items()}


def table_floats(tensors: Mapping[str, np.ndarray]) -> Floats:
    """Rows of a vocabulary table in float32, from their stored form: bfloat16, 8-bit codes with a scale each,
    or four of them to a word with scales in groups (MLX's, whose biases follow from the scales).
    """
    if "codes" in tensors:
        return (tensors["codes"].astype(np.float32) - 128) * tensors["scales"][:, None]
    weight = tensors["weight"]
    if weight.dtype == np.uint16:
        return (weight.astype(np.uint32) << 16).view(np.float32)
    scales = tensors["scales"].astype(np.float32)
    groups = weight.view(np.uint8).reshape(*scales.shape, -1).astype(np.float32) - 128
    return (groups * scales[..., None]).reshape(len(weight), -1)
