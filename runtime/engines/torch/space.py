"""Tensors over what the core hands to the torch engine, and its calls as work of a device's streams."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgekit.runtime.core_structs import CopyStruct, WeightsStruct
from edgekit.runtime.engines.space import Expert, Space, T, Work
from edgekit.runtime.engines.torch.device import Device, Event, host_floats
from edgekit.runtime.engines.torch.graphs import Graphs
from edgekit.runtime.engines.torch.mixture import TensorMixture
from edgekit.runtime.engines.torch.own_memory import OwnMemory
from edgekit.runtime.engines.torch.tables import Tables
from edgekit.runtime.engines.torch.tiers import Tiers
from edgekit.runtime.sampling.types import Floats

#: Copies that are made as one, where they are rows of one array.
_MANY_COPIES = 4


@dataclass
class _Job:
    """Work under way: where it ends (None: no stream was given it yet), what follows it, and its weights."""

    event: Event | None
    finish: Work | None = None
    asked: list[Any] = field(default_factory=list)


class TorchSpace(Space):
    """Tensors on a device. Calls are put into its stream; where it has memory of its own they return before
    they are done, and experts wait for others of their layer, until something else comes or is waited for.
    """

    def __init__(self, device: Device, room: Callable[[], int]) -> None:
        """`room` tells how many bytes of weights may stay on the device."""
        self._device, self.own_memory, self._room = device, device.own_memory, room
        self.tiers, self.graphs = Tiers(device), Graphs(device.capture)
        self._memory, self._tables = OwnMemory(device), Tables(device)
        self._phases = tuple(torch.tensor([n], device=device.place) for n in (0, 1))
        self._seen: list[Hashable] = []  # what the call that comes in depends on
        self._jobs: deque[_Job] = deque()
        self._waited = 0
        self._deferred: list[tuple[Expert, _Job]] = []
        self._run: Callable[[Sequence[Expert]], None] = lambda experts: None

    # What a call points at.

    def rows(self, address: int, shape: tuple[int, ...]) -> Tensor:
        self._seen.append((address, shape))
        return self._memory.view(address, shape) if self.own_memory else host_floats(address, shape)

    def heads(self, address: int | None, count: int, stride: int, shape: tuple[int, int]) -> Tensor:
        self._seen.append((address, count, stride, shape))
        rows, width = shape
        if address is None or count * rows * width == 0:
            return torch.empty((1, count, *shape), device=self._device.place)
        full, strides = (1, count, rows, width), (count * stride, stride, width, 1)
        if self.own_memory:
            return self._memory.view(address, full, strides)
        return host_floats(address, ((count - 1) * stride + rows * width,)).as_strided(full, strides)

    def table(self, address: int, shape: tuple[int, ...], inputs: int) -> Tensor:
        if not self.own_memory:
            return host_floats(address, shape)
        made = self._tables.at(address, shape, inputs)
        self._seen.append((self._device.address(made), shape))
        return made

    def nothing_hidden(self, shape: tuple[int, int]) -> Tensor:
        return torch.zeros(shape, device=self._device.place)

    def phase(self, causal: bool) -> Tensor:
        return self._phases[causal]

    def noise(self, made: Floats) -> Callable[[], Tensor]:
        host = torch.from_numpy(made)
        if not self.own_memory:
            return lambda: host
        staged = self._device.staged(host)
        # In the stream that uses it, whose memory it takes.
        return lambda: staged.to(self._device.place, non_blocking=True)

    def weights(self, given: WeightsStruct) -> Any:
        found = self.tiers.tensors(given)
        self._seen.append(found.key)
        return found.tensors

    def note(self, *what: Any) -> None:
        self._seen.append(what)

    def only_read(self, given: Any) -> Any:
        return given

    # Results.

    def joined(self, pieces: Sequence[Any], shape: tuple[int, ...]) -> Tensor:
        return torch.cat([torch.empty(shape, device=self._device.place), *pieces], 2)

    def looked_at(self, found: Any) -> tuple[tuple[int, ...], str] | None:
        if not isinstance(found, Tensor):
            return None
        if found.is_floating_point():
            return tuple(found.shape), "f"
        return tuple(found.shape), "b" if found.dtype == torch.bool else "i"

    def fetched(self, found: Any) -> Any:
        return self._device.fetched(found)

    def numbers(self, found: Any) -> np.ndarray:
        made: np.ndarray = found.numpy()
        return made

    def mixture(self, x: Any, index: Any, weight: Any, experts: int, advice: str) -> TensorMixture:
        return TensorMixture(x, index, weight, experts, advice)

    # Work.

    def submit(self, work: Work, finish: Work | None = None, repeats: str = "") -> bool:
        self._flush()
        asked, once = self.tiers.asked(), self._repeated(work, repeats)
        self._device.compute.run(once)
        event = self._ended(asked)
        if not self.own_memory:
            if finish is not None:
                finish()
            return False
        self._jobs.append(_Job(event, finish))
        return True

    def now(self, work: Callable[[], T], then: Callable[[T], object], repeats: str = "") -> None:
        self._flush()
        asked, once = self.tiers.asked(), self._repeated(work, repeats)
        self._device.compute.run(lambda: then(once()))
        try:
            self._ended(asked).wait()
        except BaseException:
            self._lose()
            raise

    def defer(self, expert: Expert, run: Callable[[Sequence[Expert]], None]) -> bool:
        if not self.own_memory:
            run([expert])
            return False
        job, self._run = _Job(None, asked=self.tiers.asked()), run
        self._deferred.append((expert, job))
        self._jobs.append(job)
        return True

    def hold(self, unit: bytes | None) -> None:
        self.tiers.hold(unit)

    def allocate(self, nbytes: int) -> int | None:
        return self._memory.allocate(nbytes)

    def release(self, address: int, nbytes: int) -> None:
        self._memory.release(address)

    def copy(self, copies: Sequence[CopyStruct]) -> bool:
        made = self._gathered(copies) or [self._copied(each) for each in copies]

        def work() -> None:
            for to, given in made:
                to.copy_(given(), non_blocking=True)

        return self.submit(work)

    def wait(self, count: int) -> None:
        """Wait for the first `count` pieces of work that were submitted."""
        coming = count - self._waited
        if any(job.event is None for job in list(self._jobs)[:coming]):
            self._flush()
        self._waited = count
        jobs = [self._jobs.popleft() for _ in range(coming)]
        try:
            for job in reversed(jobs):  # the last first: then nothing of the others is under way
                if job.event is not None:
                    job.event.wait()
            for job in jobs:
                if job.finish is not None:
                    job.finish()
        except BaseException:
            self._lose()
            raise

    def room(self) -> int:
        return self._room()

    def keep(self, given: WeightsStruct) -> bool:
        return self.tiers.keep(given)

    def lend(self, address: int, nbytes: int) -> None:
        self.tiers.lend(address, nbytes)

    def take_back(self, address: int, nbytes: int) -> None:
        self.tiers.take_back(address, nbytes)

    def close(self) -> None:
        """Give back what is on the device besides memory that was allocated. No work is under way."""
        self.graphs.clear()
        self._tables.clear()
        self.tiers.clear()

    def _repeated(self, work: Callable[[], T], repeats: str) -> Callable[[], T]:
        """The work of the call that has come in, by a graph where it repeats."""
        key, self._seen = (repeats, tuple(self._seen)), []
        if not repeats or not self.own_memory:
            return work
        return lambda: self.graphs.run(key, work)

    def _ended(self, asked: list[Any]) -> Event:
        """The place behind what the stream was given, which the weights in use are told."""
        event = self._device.compute.record()
        self.tiers.submitted(asked, event)
        return event

    def _lose(self) -> None:
        """Work has failed, and what came behind it may have been left out: nothing that should be on the
        device is relied on.
        """
        for stream in (self._device.copies, self._device.compute):
            with suppress(Exception):
                stream.record().wait()
        self._deferred = []
        self.graphs.clear()
        self._tables.clear()
        self.tiers.drop()

    def _flush(self) -> None:
        """Have the experts run that were deferred."""
        if not self._deferred:
            return
        deferred, run = self._deferred, self._run
        self._deferred, self._run = [], lambda experts: None
        experts, asked = [], []
        for expert, job in deferred:
            experts.append(expert)
            asked += job.asked
        try:
            self._device.compute.run(lambda: run(experts))
        finally:
            event = self._ended(asked)
            for _, job in deferred:
                job.event = event

    def _copied(self, copy: CopyStruct) -> tuple[Tensor, Callable[[], Tensor]]:
        """Where a copy goes, and what gives what it takes when it is made."""
        width = copy.bytes // 4
        if copy.to_session:  # of one block
            to = host_floats(copy.to, (1, width))
        else:
            to = self._memory.view(copy.to, (copy.blocks, width), (copy.to_stride // 4, 1))
        at, strides = getattr(copy, "from"), (copy.from_stride // 4, 1)
        if copy.from_session:
            size = (copy.blocks - 1) * strides[0] + width
            staged = self._device.staged(host_floats(at, (size,)).as_strided((copy.blocks, width), strides))
            return to, lambda: staged
        taken = self._memory.view(at, (copy.blocks, width), strides)
        return to, lambda: taken

    def _gathered(self, copies: Sequence[CopyStruct]) -> list[tuple[Tensor, Callable[[], Tensor]]]:
        """The same where copies are many rows of one array that come to lie one behind the other; else none:
        a device takes as long for a row as for all.
        """
        first, size = copies[0], copies[0].bytes
        if len(copies) < _MANY_COPIES or any(
            each.bytes != size
            or each.blocks != 1
            or each.from_session
            or each.to_session
            or each.to != first.to + i * size
            for i, each in enumerate(copies)
        ):
            return []
        places = [int(getattr(each, "from")) for each in copies]
        base = min(places)
        rows = [(at - base) // size for at in places]
        if any(base + row * size != at for row, at in zip(rows, places, strict=True)):
            return []
        table = self._memory.view(base, (max(rows) + 1, size // 4))
        index = self._device.staged(torch.tensor(rows))
        to = self._memory.view(first.to, (len(rows), size // 4))
        return [(to, lambda: table[index.to(self._device.place, non_blocking=True)])]
