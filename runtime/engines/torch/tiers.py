"""Weights on a device. What it has room for is copied there once, while a session opens; the session has all
else, in its memory or on the disk, which goes through slots, copied while the work before it computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

    def __init__(self, device: Device) -> None:
        self._device = device
        self._slots: Slots[Tensor, Event] = Slots(device.allocate, self._release, _LEAST_SLOTS)
        self._places: dict[bytes, tuple[Place, ...]] = {}
        self._kept: dict[bytes, UnitTensors] = {}
        self._blocks: list[Tensor] = []
        self._mapped: dict[bytes, tuple[int, UnitTensors]] = {}
        self._asked: list[Slot[Tensor, Event]] = []  # since work was submitted
        self._held: list[Slot[Tensor, Event]] = []
        self.kept_bytes = self.uploaded_bytes = 0

    def keep(self, given: WeightsStruct) -> bool:
        """Have a unit on the device until `clear`. Returns whether there was memory for it."""
        try:
            block = self._device.allocate(given.bytes)
        except MemoryError:
            return False
        host = host_bytes(given.data, given.bytes)
        self._device.copies.run(lambda: self._device.upload(block, host))
        self._device.copies.record().wait()
        self._blocks.append(block)
        self._kept[given.unit] = self._views(given, block)
        self.kept_bytes += given.bytes
        self.uploaded_bytes += given.bytes
        return True

    def lend(self, place: int, nbytes: int) -> None:
        """Memory of the session will hold weights."""
        self._device.lend(place, nbytes)

    def take_back(self, place: int, nbytes: int) -> None:
        """That memory is about to go."""
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
        block = self._slot(unit, nbytes).block
        made = self._views(given, block)
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

    def drop(self) -> None:
        """Forget what lies in slots: work has failed, and it may not be whole. No work is under way."""
        self._slots.clear()
        self._asked, self._held = [], []

    def clear(self) -> None:
        """Give all memory of the device back. No work is under way."""
        self.drop()
        for block in self._blocks:
            self._device.release(block)
        self._blocks.clear()
        self._kept.clear()
        self.kept_bytes = 0

    def _release(self, block: Tensor, used: Event | None) -> None:
        if used is not None:
            used.wait()
        self._device.release(block)

    def _slot(self, unit: bytes, nbytes: int) -> Slot[Tensor, Event]:
        """A slot for a unit, whose last use the copy follows. Raises EngineFailed."""
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
        return slot

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
