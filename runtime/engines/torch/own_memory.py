"""Memory of a device that the core knows by numbers, to which it adds offsets."""

from __future__ import annotations

from bisect import bisect_right, insort

import torch
from torch import Tensor

from edgekit.runtime.engines.torch.device import Device


class OwnMemory:
    """Blocks by address, and float32 tensors over parts of them."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._starts: list[int] = []
        self._blocks: dict[int, tuple[Tensor, Tensor]] = {}  # bytes and floats [n], by where they start

    def __len__(self) -> int:
        return len(self._starts)

    def allocate(self, nbytes: int) -> int | None:
        """The address of a block; None: there is no memory left."""
        try:
            made = self._device.allocate(-(-nbytes // 64) * 64)
        except MemoryError:
            return None
        start = self._device.address(made)
        insort(self._starts, start)
        self._blocks[start] = made, made.view(torch.float32)
        return start

    def release(self, start: int) -> None:
        """Give a block back, which no work uses. Raises LookupError for what is none."""
        block, _ = self._blocks.pop(start)
        self._device.release(block)
        self._starts.remove(start)

    def view(self, at: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Tensor:
        """A tensor [*shape] over the floats at an address, whose axes lie `strides` floats apart, or one
        behind the other. Raises LookupError for what is not all in one block.
        """
        if strides is None:
            made = [1]
            for length in reversed(shape[1:]):
                made.append(made[-1] * length)
            strides = tuple(reversed(made))
        last = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        index = bisect_right(self._starts, at) - 1
        if index >= 0:
            block = self._blocks[self._starts[index]][1]
            first, odd = divmod(at - self._starts[index], 4)
            if 0 in shape or (not odd and first + last < len(block)):
                return block.as_strided(shape, strides, block.storage_offset() + min(first, len(block)))
        raise LookupError(f"address {at} with {last + 1} floats is in no block that was allocated")
