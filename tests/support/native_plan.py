"""Plans of residency by the native core's rule: units that stay in memory, units that are streamed every
step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_int64, c_uint8, c_uint64
from dataclasses import dataclass
from typing import Final

from edgekit.flashload.errors import BudgetExceeded, InvalidRequest
from support.native_testing import library

DENSE_SMALL = "dense small"  # group of norms, routers, shared parts: little work per request
EXPERT = "expert"  # group of experts
SPARSE = "sparse expert"  # group of experts of which a step uses some alone
_MOST: Final = 2**64 - 1


@dataclass(frozen=True)
class Unit:
    """Something that is pinned or streamed as a whole: a run. `nbytes` is its length in memory.

    `group` names its kind ("dense small", "layer", "expert", "head", ...); pins are spread within a group.
    `ring` is the one of two that it streams through.
    """

    name: str
    nbytes: int
    group: str
    ring: int = 0


@dataclass(frozen=True)
class Plan:
    """A residency plan. All sizes are bytes; `units` and `streamed` are in execution order."""

    units: tuple[Unit, ...]
    pinned: frozenset[str]
    streamed: tuple[str, ...]
    ring_bytes: int
    first_ring_bytes: int
    pinned_bytes: int
    streamed_bytes: int
    budget_bytes: int

    @property
    def footprint_bytes(self) -> int:
        """Memory that the plan uses: pins and ring. At most `budget_bytes`."""
        return self.pinned_bytes + self.ring_bytes


class _Unit(ctypes.Structure):
    _fields_ = (("name", c_char_p), ("group", c_char_p), ("bytes", c_uint64), ("ring", c_int64))


_ARGUMENTS: Final = (
    POINTER(_Unit), c_int64, c_uint64, c_uint64, c_uint64, POINTER(c_uint8),
    POINTER(c_uint64), POINTER(c_uint64),
)  # fmt: skip
_BUDGET_EXCEEDED: Final = 12


def plan(units: Sequence[Unit], budget_bytes: int, *, ring_bytes_min: int = 0, ring_units: int = 2) -> Plan:
    """Divide `units`, given in execution order, between pins and a ring within `budget_bytes`: the native
    core's plan.

    If everything fits there is no ring. Otherwise each ring holds the `ring_units` largest units that stream
    through it, both together have at least `ring_bytes_min`, and the rest of the budget is filled with pins:
    small dense units first, then experts, then the other groups from the smallest to the largest, sparse
    experts last; within a group units of equal size are spread evenly over the cycle. More budget never pins
    fewer bytes.

    Raises BudgetExceeded (with the smallest sufficient budget) and InvalidRequest for bad arguments.
    """
    if budget_bytes < 0 or ring_bytes_min < 0 or ring_units < 0 or any(unit.nbytes < 0 for unit in units):
        raise InvalidRequest(
            f"budget {budget_bytes}, ring {ring_bytes_min}, {ring_units} units in it and the bytes of units "
            "must not be negative"
        )
    given = (_Unit * len(units))(*(_Unit(_text(u.name), _text(u.group), u.nbytes, u.ring) for u in units))
    flags, ring, first = (c_uint8 * len(units))(), c_uint64(), c_uint64()
    core = library()
    core.ekt_plan_residency.argtypes = _ARGUMENTS
    core.ek_last_error.restype, core.ek_last_error_bytes.restype = c_char_p, c_uint64
    status = core.ekt_plan_residency(
        given, len(units), min(budget_bytes, _MOST), min(ring_bytes_min, _MOST), ring_units, flags,
        ctypes.byref(ring), ctypes.byref(first),
    )  # fmt: skip
    if status == _BUDGET_EXCEEDED:
        raise BudgetExceeded(core.ek_last_error().decode(), core.ek_last_error_bytes())
    if status:
        raise InvalidRequest(core.ek_last_error().decode())
    pinned = [unit for unit, flag in zip(units, flags, strict=True) if flag]
    streamed = [unit for unit, flag in zip(units, flags, strict=True) if not flag]
    return Plan(
        units=tuple(units),
        pinned=frozenset(unit.name for unit in pinned),
        streamed=tuple(unit.name for unit in streamed),
        ring_bytes=ring.value,
        first_ring_bytes=first.value,
        pinned_bytes=sum(unit.nbytes for unit in pinned),
        streamed_bytes=sum(unit.nbytes for unit in streamed),
        budget_bytes=budget_bytes,
    )


def _text(name: str) -> bytes:
    return name.encode(errors="backslashreplace")
