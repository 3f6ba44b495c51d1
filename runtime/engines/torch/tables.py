"""Copies of rotary tables and masks on a device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from edgekit.runtime.engines.torch.device import Device, host_floats


class Tables:
    """Tables by where they lie in the session's memory, copied once for all calls with the same number. Those
    of the number before give their memory to the next ones of their shape, in the same order: work on equal
    shapes finds equal addresses.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._inputs = -1
        self._made: dict[tuple[int, tuple[int, ...]], Tensor] = {}  # blocks
        self._free: dict[tuple[int, ...], list[Tensor]] = {}

    def at(self, address: int, shape: tuple[int, ...], inputs: int) -> Tensor:
        """A float32 table [*shape], for work that is submitted next."""
        if inputs != self._inputs:
            # Those that are free now were used by earlier passes alone, which have ended.
            self._release(self._free)
            self._inputs, self._free = inputs, {}
            for (_, kind), block in self._made.items():
                self._free.setdefault(kind, []).append(block)
            self._made = {}
        nbytes, known = 4 * math.prod(shape), self._made.get((address, shape))
        if known is not None:
            return _floats(known, nbytes, shape)
        free = self._free.get(shape)
        block = free.pop(0) if free else self._device.allocate(max(64, nbytes))
        to, staged = _floats(block, nbytes, shape), self._device.staged(host_floats(address, shape))
        # Behind all work that looks at what was there.
        self._device.compute.run(lambda: to.copy_(staged, non_blocking=True))
        self._made[address, shape] = block
        return to

    def clear(self) -> None:
        """Give their memory back. No work is under way."""
        self._release(self._free)
        self._release({(): list(self._made.values())})
        self._made, self._free, self._inputs = {}, {}, -1

    def _release(self, blocks: dict[tuple[int, ...], list[Tensor]]) -> None:
        for each in blocks.values():
            for block in each:
                self._device.release(block)


def _floats(block: Tensor, nbytes: int, shape: tuple[int, ...]) -> Tensor:
    return block[:nbytes].view(torch.float32).view(shape)
