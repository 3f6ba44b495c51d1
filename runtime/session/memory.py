"""What a session takes of memory and which weights stay there: the core's plan."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, Final

from edgekit.flashload import _native
from edgekit.runtime.core_structs import EngineStruct, MemoryPlanStruct, UnitPlanStruct

#: What processes that do the same differ by when they come to plan.
NEXT_PROCESS_BYTES: Final = 1 << 20

_SIGNATURES: Final = {
    "ek_plan_get_memory": (c_void_p, POINTER(MemoryPlanStruct)),
    "ek_plan_get_unit": (c_void_p, c_int64, POINTER(UnitPlanStruct)),
}
PLAN_SIGNATURE: Final = (c_char_p, c_void_p, POINTER(EngineStruct), c_uint64, POINTER(c_void_p))


@dataclass(frozen=True)
class PlannedUnit:
    """Weights that stay in memory or stream as a whole: a run or a package. `group` names its kind ("layer",
    "expert", "head", "embedding", "dense small", ...); `kept`: it stays in a device's memory.
    """

    name: str
    group: str
    nbytes: int
    pinned: bool
    kept: bool = False


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by cause, and weights. `process` is what the process holds without the session; `units` are in
    the order in which a step uses them, then those that are looked up row by row.
    """

    process: int
    prefix: int
    activations: int
    scratch: int
    head: int
    allowance: int
    pinned_bytes: int
    ring_bytes: int
    streamed_bytes: int
    weights_bytes: int
    least_memory_bytes: int  # the smallest memory budget for these lengths
    most_sequences: int  # of these lengths that the budget, or the machine, has room for; 0: not known
    units: tuple[PlannedUnit, ...]
    kept_bytes: int = 0  # of weights, in a device's memory

    @property
    def needs(self) -> int:
        """All but weights."""
        return self.process + self.prefix + self.activations + self.scratch + self.head + self.allowance

    @property
    def pinned(self) -> frozenset[str]:
        return frozenset(unit.name for unit in self.units if unit.pinned)

    @property
    def streamed(self) -> tuple[str, ...]:
        """What is read again in every step, in its order."""
        return tuple(u.name for u in self.units if not (u.pinned or u.kept) and u.group != "embedding")

    @property
    def footprint_bytes(self) -> int:
        """Memory of weights: those that stay, and the ring."""
        return self.pinned_bytes + self.ring_bytes


def read_plan(make: Callable[[Any], int], check: Callable[[int], None]) -> MemoryPlan:
    """The plan that a function of the core makes at the place it is given; `check` raises for its status."""
    core = _native.functions(_SIGNATURES, "ek_plan_close")
    handle = c_void_p()
    check(make(ctypes.byref(handle)))
    try:
        memory = MemoryPlanStruct()
        _native.check(core.ek_plan_get_memory(handle, ctypes.byref(memory)))
        units = []
        for index in range(memory.units):
            unit = UnitPlanStruct()
            _native.check(core.ek_plan_get_unit(handle, index, ctypes.byref(unit)))
            where = bool(unit.pinned), bool(unit.kept)
            units.append(PlannedUnit(unit.name.decode(), unit.group.decode(), unit.bytes, *where))
    finally:
        core.ek_plan_close(handle)
    return MemoryPlan(
        memory.process, memory.prefix, memory.activations, memory.scratch, memory.head, memory.allowance,
        memory.pinned, memory.ring, memory.streamed, memory.weights, memory.least_memory,
        memory.most_sequences, tuple(units), memory.kept,
    )  # fmt: skip
