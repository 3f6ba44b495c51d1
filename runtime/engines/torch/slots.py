"""Which memory of a device the units that stream through it have: decided here, without touching any."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

Block = TypeVar("Block")
Mark = TypeVar("Mark")


@dataclass(eq=False)
class Slot(Generic[Block, Mark]):
    """A block with the unit in it. `used`: what the last work that used it ends with; `holds`: how often it
    was asked for, by work that was not submitted yet.
    """

    block: Block
    nbytes: int
    unit: bytes | None = None
    used: Mark | None = None
    holds: int = 0
    turn: int = 0


class Slots(Generic[Block, Mark]):
    """Blocks in turns: the one that was used longest ago is next, so that one unit is copied while work
    computes with the one before. They take `least_bytes`, or room for two of the largest unit that came, and
    more only while that is held.
    """

    def __init__(
        self,
        allocate: Callable[[int], Block],
        release: Callable[[Block, Mark | None], None],
        least_bytes: int,
    ) -> None:
        """`release` is called with the mark of a block's last use, None where it had none."""
        self._allocate, self._release, self._capacity = allocate, release, least_bytes
        self._slots: list[Slot[Block, Mark]] = []
        self._turn = 0

    @property
    def nbytes(self) -> int:
        """Of all blocks."""
        return sum(each.nbytes for each in self._slots)

    def find(self, unit: bytes) -> Slot[Block, Mark] | None:
        """The slot that has a unit, held once more."""
        found = next((each for each in self._slots if each.unit == unit), None)
        return None if found is None else self._taken(found)

    def take(self, unit: bytes, nbytes: int) -> Slot[Block, Mark]:
        """A slot for a unit, held once. What is copied into it is to wait for `used`."""
        self._capacity = max(self._capacity, 2 * nbytes)
        self._trim(0)  # what was held beyond that
        if self.nbytes + nbytes > self._capacity:
            # Not much larger: it would be missed by a larger unit.
            fits = [each for each in self._free() if nbytes <= each.nbytes <= 2 * nbytes]
            if fits:
                fits[0].unit = unit
                return self._taken(fits[0])
        self._trim(nbytes)
        made: Slot[Block, Mark] = Slot(self._allocate(nbytes), nbytes, unit)
        self._slots.append(made)
        return self._taken(made)

    def done(self, slots: Iterable[Slot[Block, Mark]], mark: Mark | None) -> None:
        """Hold slots once less: the work that uses them was submitted, and ends with `mark`; None: there was
        none.
        """
        for each in slots:
            each.holds -= 1
            each.used = each.used if mark is None else mark

    def clear(self) -> None:
        """Give every block back, which no work uses."""
        for each in list(self._slots):
            self._drop(each)

    def _taken(self, slot: Slot[Block, Mark]) -> Slot[Block, Mark]:
        self._turn += 1
        slot.holds, slot.turn = slot.holds + 1, self._turn
        return slot

    def _free(self) -> list[Slot[Block, Mark]]:
        return sorted((each for each in self._slots if not each.holds), key=lambda each: each.turn)

    def _trim(self, coming: int) -> None:
        """Give blocks back until so many more bytes have room."""
        for each in self._free():
            if self.nbytes + coming <= self._capacity:
                break
            self._drop(each)

    def _drop(self, slot: Slot[Block, Mark]) -> None:
        self._slots.remove(slot)
        self._release(slot.block, slot.used)
