"""Where the torch engine computes, and how bytes get there. Work is put into two streams, which keep its
order: one computes, one copies weights. `cuda.py` has those of NVIDIA GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from edgekit.flashload.core_memory import address, array

Work = Callable[[], object]
T = TypeVar("T")


class Event(Protocol):
    """A place in a stream."""

    def wait(self) -> None:
        """Wait until the stream has come there. Raises what the work before it has raised."""


class Stream(Protocol):
    """Does pieces of work one after the other."""

    def run(self, work: Work) -> None:
        """Have work done. What it raises is raised here, or when an event behind it is waited for."""

    def record(self) -> Event:
        """The place behind all that it was given."""

    def follow(self, event: Event) -> None:
        """Do nothing more of what comes from here on before another stream has come to a place."""


class Device(Protocol):
    """A device. Blocks of its memory are tensors of bytes, uint8 [n]."""

    place: torch.device
    #: For people.
    name: str
    #: It has memory of its own, and work may be done after it was given. If not, it computes at once, on
    #: memory of the session.
    own_memory: bool
    compute: Stream
    copies: Stream

    def allocate(self, nbytes: int) -> Tensor:
        """A block, aligned to 64. Raises MemoryError: there is none left."""

    def release(self, block: Tensor) -> None:
        """Take a block back, which no work uses."""

    def address(self, block: Tensor) -> int:
        """The number by which the core knows a block; a block takes as many numbers as it has bytes."""

    def free_bytes(self) -> int:
        """Bytes that may still be allocated; none where weights are used in memory of the session."""

    def lend(self, place: int, nbytes: int) -> None:
        """Get ready to copy from memory of the session."""

    def take_back(self, place: int, nbytes: int) -> None:
        """End that."""

    def in_place(self, place: int, nbytes: int) -> Tensor | None:
        """Weights in memory of the session, for a device that computes with them where they are; None: they
        are to be uploaded.
        """

    def upload(self, block: Tensor, host: Tensor) -> None:
        """Work of the stream of copies: memory of the session, uint8 [n], to the beginning of a block."""

    def staged(self, host: Tensor) -> Tensor:
        """What memory of the session holds now, to be copied by later work."""

    def fetched(self, found: Tensor) -> Tensor:
        """Within work: a result as a tensor of the processor, which holds it when the work is done."""

    def capture(self, work: Callable[[], T]) -> Callable[[], T] | None:
        """Within work: what does a piece of it again on the same addresses, and gives what it has made, which
        is written over each time; it is not done now. None: it cannot.
        """


class _AtOnce:
    """A stream, and its events, where work is done before anything else happens."""

    def run(self, work: Work) -> None:
        work()

    def record(self) -> Event:
        return self

    def follow(self, event: Event) -> None:
        pass

    def wait(self) -> None:
        pass


class Processor:
    """The processor, on memory of the session. Weights are used where they lie."""

    place = torch.device("cpu")
    name = "cpu"
    own_memory = False

    def __init__(self) -> None:
        self.compute: Stream = _AtOnce()
        self.copies: Stream = self.compute

    def allocate(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def release(self, block: Tensor) -> None:
        pass

    def address(self, block: Tensor) -> int:
        return block.data_ptr()

    def free_bytes(self) -> int:
        return 0

    def lend(self, place: int, nbytes: int) -> None:
        pass

    def take_back(self, place: int, nbytes: int) -> None:
        pass

    def in_place(self, place: int, nbytes: int) -> Tensor | None:
        return host_bytes(place, nbytes)

    def upload(self, block: Tensor, host: Tensor) -> None:
        block[: len(host)].copy_(host)

    def staged(self, host: Tensor) -> Tensor:
        return host.clone()

    def fetched(self, found: Tensor) -> Tensor:
        return found

    def capture(self, work: Callable[[], T]) -> Callable[[], T] | None:
        return None


def host_bytes(place: int, nbytes: int) -> Tensor:
    """Memory of the session, uint8 [n]."""
    return torch.from_numpy(array(place, (nbytes,), np.uint8))


def host_floats(place: int | None, shape: tuple[int, ...]) -> Tensor:
    """Float32 numbers in memory of the session."""
    return torch.from_numpy(array(place, shape))


def host_tensor(given: np.ndarray) -> Tensor:
    """An array as a tensor over the same memory. bfloat16 is uint16 in numpy."""
    given = np.ascontiguousarray(given)
    # PyTorch has no tensors that are only read, and warns of arrays that are.
    writable = given if given.flags.writeable else array(address(given), given.shape, given.dtype.type)
    if given.dtype == np.uint16:
        return torch.from_numpy(writable.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(writable)
