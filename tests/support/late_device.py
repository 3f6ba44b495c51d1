"""A device of the torch engine whose work is done late, by a thread that turns to one stream or the other at
random: what a GPU does, on the processor. Its memory is full of NaN before it was written and after it was
given back, and lies where no address of the processor leads to.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from edgekit.flashload import _native
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engines.base import Routing
from edgekit.runtime.engines.torch.device import Event, Work
from edgekit.runtime.engines.torch.engine import TorchEngine
from edgekit.runtime.session import Session, SessionOptions
from support.native_testing import library

#: As `FarMemory` has it.
_FAR = 1 << 52


T = TypeVar("T")


def _tensors(made: Any) -> list[Tensor]:
    """All that a result holds."""
    if isinstance(made, Tensor):
        return [made]
    if isinstance(made, Routing):
        return _tensors([made.x, made.index, made.weight, made.k, made.v, *made.further.values()])
    if isinstance(made, dict):
        return _tensors(list(made.values()))
    return [each for part in made for each in _tensors(part)] if isinstance(made, list | tuple) else []


class _Place:
    def __init__(self, device: LateDevice) -> None:
        self.device, self.reached = device, False

    def wait(self) -> None:
        self.device.wait_for(self)


class _Stream:
    def __init__(self, device: LateDevice, name: str) -> None:
        self.device, self.name = device, name
        self.jobs: deque[Work | _Place | tuple[_Place]] = deque()  # work; a place; a place to wait for

    def run(self, work: Work) -> None:
        self.device.add(self, work)

    def record(self) -> Event:
        made = _Place(self.device)
        self.device.add(self, made)
        return made

    def follow(self, event: Event) -> None:
        assert isinstance(event, _Place)
        if not self.device.careless or self is self.device.compute:
            self.device.add(self, (event,))


class LateDevice:
    """`microseconds`: how long a piece of work is delayed at most. `memory`: bytes that may be allocated.
    `careless`: weights are copied over others that are in use.
    """

    place = torch.device("cpu")
    name = "late"
    own_memory = True

    def __init__(
        self, seed: int = 0, microseconds: int = 200, memory: int = 1 << 40, careless: bool = False
    ) -> None:
        self.compute, self.copies = _Stream(self, "compute"), _Stream(self, "copies")
        self.careless = careless
        self.blocks: dict[int, Tensor] = {}
        self.lent: dict[int, int] = {}
        self.mistakes: list[str] = []
        self.captured = self.replayed = self.behind = self.peak_bytes = 0
        self._random, self._most, self._memory = random.Random(seed), microseconds, memory
        self._changed = threading.Condition()
        self._busy: _Stream | None = None
        self._failed: BaseException | None = None
        self._ends = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def used_bytes(self) -> int:
        return sum(len(each) for each in self.blocks.values())

    def allocate(self, nbytes: int) -> Tensor:
        if self.used_bytes + nbytes > self._memory:
            raise MemoryError
        made = torch.full((nbytes,), 0xFF, dtype=torch.uint8)
        self.blocks[made.data_ptr()] = made
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return made

    def release(self, block: Tensor) -> None:
        if self.blocks.pop(block.data_ptr(), None) is None:
            self.mistakes.append("a block was given back that is none")
        block.fill_(0xFF)

    def address(self, block: Tensor) -> int:
        return block.data_ptr() + _FAR

    def free_bytes(self) -> int:
        return self._memory - self.used_bytes

    def lend(self, place: int, nbytes: int) -> None:
        self.lent[place] = nbytes

    def take_back(self, place: int, nbytes: int) -> None:
        if self.lent.pop(place, None) != nbytes:
            self.mistakes.append("memory was taken back that was not lent")

    def in_place(self, place: int, nbytes: int) -> Tensor | None:
        return None

    def upload(self, block: Tensor, host: Tensor) -> None:
        place = host.data_ptr()
        if not any(at <= place and place + len(host) <= at + n for at, n in self.lent.items()):
            self.mistakes.append("weights lie where none were lent")
        block[: len(host)].copy_(host)

    def staged(self, host: Tensor) -> Tensor:
        return host.clone()

    def fetched(self, found: Tensor) -> Tensor:
        return found.clone()

    def capture(self, work: Callable[[], T]) -> Callable[[], T] | None:
        """What the work makes lies at the same place every time."""
        self.captured += 1
        made: list[T] = []

        def replay() -> T:
            self.replayed += 1
            again = work()
            if not made:
                made.append(again)
            with torch.inference_mode():
                for to, new in zip(_tensors(made[0]), _tensors(again), strict=True):
                    to.copy_(new.clone())
            return made[0]

        return replay

    # What the streams use.

    def add(self, stream: _Stream, job: Any) -> None:
        with self._changed:
            stream.jobs.append(job)
            self.behind = max(self.behind, len(self.compute.jobs))
            self._changed.notify_all()

    def wait_for(self, place: _Place) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: place.reached, timeout=60):
                raise AssertionError("work that is waited for is never done")
            error, self._failed = self._failed, None
        if error is not None:
            raise error

    def close(self) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._thread.join()

    def _ready(self) -> list[_Stream]:
        heads = [each for each in (self.compute, self.copies) if each.jobs]
        return [s for s in heads if not isinstance(s.jobs[0], tuple) or s.jobs[0][0].reached]

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ends or self._ready())
                if self._ends:
                    return
                stream = self._random.choice(self._ready())
                job, skipped = stream.jobs[0], self._failed is not None
            if callable(job):
                time.sleep(self._random.randrange(self._most + 1) / 1e6)
                try:
                    if not skipped:
                        job()
                except BaseException as error:
                    with self._changed:
                        self._failed = self._failed or error
            with self._changed:
                stream.jobs.popleft()
                if isinstance(job, _Place):
                    job.reached = True
                del job
                self._changed.notify_all()


@contextmanager
def late_session(
    bundle: Path,
    options: SessionOptions,
    weight_bytes: int | None = None,
    change: Callable[[TorchEngine], None] = lambda engine: None,
    **how: Any,
) -> Iterator[tuple[Session, LateDevice]]:
    """A session of the torch engine on such a device, whose streamed weights are filled with 0xFF when they
    are released. Everything was given back afterwards.
    """
    device = LateDevice(**how)

    def make(opened: Bundle) -> TorchEngine:
        engine = TorchEngine(opened.folder, opened.manifest, 1, device, weight_bytes)
        change(engine)
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_native.LIBRARY_VARIABLE, library()._name)
        library().ekt_poison_released_runs(1)
        try:
            with Session(bundle, options, engine=make) as session:
                yield session, device
        finally:
            library().ekt_poison_released_runs(0)
            device.close()
    assert not device.mistakes and not device.lent
    assert not device.blocks, [len(each) for each in device.blocks.values()]
