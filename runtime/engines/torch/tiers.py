"""Weights on their way to a device: memory of the device, memory of the session, the disk, which is the
session's affair. What stays in the session's memory is uploaded once where the device has room for it; all
else goes through slots, copied while the work before it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from edgekit.runtime.core_structs import WeightsStruct
from edgekit.runtime.engines.torch.device import Device, Event, host_bytes
from edgekit.runtime.engines.torch.slots import Slot, Slots
from edgekit.runtime.errors import EngineFailed

_TYPES = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F8_E4M3": torch.uint8,
    "U8": torch.uint8, "I8": torch.int8, "I32": torch.int32, "I64": torch.int64,
}  # fmt: skip
#: Of slots, at least: several experts are computed together.
_LEAST_SLOTS = 64 << 20


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in its unit."""

    name: str
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class UnitTensors:
    """Tensors of a unit by name. `key` stands for where they lie and what they are."""

    tensors: Mapping[str, Tensor]
    key: tuple[object, ...]


class Tiers:
    """The weights of a session on a device."""

    def __init__(self, device: Device, room: Callable[[], int]) -> None:
        """`room` tells, when the first unit comes that could stay on the device, how many bytes may."""
        self._device, self._room = device, room
        self._slots: Slots[Tensor, Event] = Slots(device.allocate, self._release, _LEAST_SLOTS)
        self._most: int | None = None
        self._places: dict[bytes, tuple[Place, ...]] = {}
        self._kept: dict[bytes, UnitTensors] = {}
        self._blocks: dict[bytes, Tensor] = {}
        self._mapped: dict[bytes, tuple[int, UnitTensors]] = {}
        self._lent: dict[int, tuple[int, bool]] = {}
        self._asked: list[Slot[Tensor, Event]] = []  # since work was submitted
        self._held: list[Slot[Tensor, Event]] = []
        self.kept_bytes = self.uploaded_bytes = 0

    def lend(self, place: int, nbytes: int, stays: bool) -> None:
        """Memory of the session will hold weights; `stays`: those of units that stay there."""
        self._device.lend(place, nbytes)
        self._lent[place] = nbytes, stays

    def take_back(self, place: int, nbytes: int) -> None:
        """That memory is about to go."""
        del self._lent[place]
        self._mapped.clear()
        self._device.take_back(place, nbytes)

    def tensors(self, given: WeightsStruct) -> UnitTensors:
        """A unit, for work that is submitted next: what computes follows its copy. Raises MemoryError."""
        unit, nbytes, data = given.unit, given.bytes, given.data
        if unit in self._kept:
            return self._kept[unit]
        place, mapped = self._mapped.get(unit, (0, None))
        if mapped is not None and place == data:
            return mapped
        found = self._device.in_place(data, nbytes)
        if found is not None:
            made = self._views(given, found)
            self._mapped[unit] = data, made
            return made
        slot = self._slots.find(unit)
        if slot is not None:
            self._asked.append(slot)
            return self._views(given, slot.block)
        block = self._block(unit, nbytes, data)
        made = self._views(given, block)
        if unit in self._blocks:
            self._kept[unit] = made
        host = host_bytes(data, nbytes)
        self._device.copies.run(lambda: self._device.upload(block, host))
        self._device.compute.follow(self._device.copies.record())
        self.uploaded_bytes += nbytes
        return made

    def hold(self, unit: bytes | None) -> None:
        """Keep a unit at hand while others come; None: no longer."""
        self._slots.done(self._held, None)
        slot = None if unit is None else self._slots.find(unit)
        self._held = [] if slot is None else [slot]

    def asked(self) -> list[Slot[Tensor, Event]]:
        """What was asked for since the last time, for `submitted`."""
        asked, self._asked = self._asked, []
        return asked

    def submitted(self, asked: Iterable[Slot[Tensor, Event]], event: Event) -> None:
        """The work that uses what was asked for ends with an event."""
        self._slots.done(asked, event)

    def clear(self) -> None:
        """Give all memory of the device back, such as when work has failed: weights may not be whole. No work
        is under way.
        """
        for block in self._blocks.values():
            self._device.release(block)
        self._blocks.clear()
        self._kept.clear()
        self._slots.clear()
        self._asked, self._held, self.kept_bytes = [], [], 0

    def _release(self, block: Tensor, used: Event | None) -> None:
        if used is not None:
            used.wait()
        self._device.release(block)

    def _block(self, unit: bytes, nbytes: int, data: int) -> Tensor:
        """Memory for a unit: of its own where it stays, else a slot, whose last use the copy follows. Raises
        EngineFailed.
        """
        if self._stays(data) and self._fits(nbytes):
            with suppress(MemoryError):  # what is free has changed: this unit is copied for every use
                block = self._blocks[unit] = self._device.allocate(nbytes)
                self.kept_bytes += nbytes
                return block
        try:
            slot = self._slots.take(unit, nbytes)
        except MemoryError:
            raise EngineFailed(
                f"{self._device.place} has no memory left for {nbytes} bytes of weights; other programs use "
                "it, or the session was opened for too much"
            ) from None
        self._asked.append(slot)
        if slot.used is not None:
            self._device.copies.follow(slot.used)
        return slot.block

    def _stays(self, data: int) -> bool:
        return any(at <= data < at + nbytes and stays for at, (nbytes, stays) in self._lent.items())

    def _fits(self, nbytes: int) -> bool:
        if self._most is None:
            self._most = self._room()
        return self.kept_bytes + nbytes <= self._most

    def _views(self, given: WeightsStruct, block: Tensor) -> UnitTensors:
        places = self._places.get(given.unit)
        if places is None:
            places = self._places[given.unit] = tuple(
                Place(
                    each.name.decode(), each.offset, each.bytes, each.dtype.decode(),
                    tuple(each.shape[: each.rank]),
                )
                for each in given.tensors[: given.tensor_count]
            )  # fmt: skip
        tensors = {
            each.name: block[each.offset : each.offset + each.nbytes]
            .view(_TYPES[each.dtype])
            .view(each.shape)
            for each in places
        }
        return UnitTensors(tensors, (self._device.address(block), places))
