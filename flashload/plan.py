"""Which units stay in memory and which are streamed every step. Pure arithmetic on names and bytes.

Units are used in a fixed cycle, so a cache that evicts by recency never hits, while every pinned byte saves
one byte of reading per step, whichever unit it belongs to. Hence: pin as many bytes as fit; among equal
bytes pin first what cannot hide its own read, and spread the rest evenly so that the reader always has
computation to hide behind. Experts come before dense parts: an expert computes a few rows with its bytes, a
layer or the vocabulary head the whole canvas. While the head computes, a disk whose buffers are full would
stand still; streaming the head itself keeps it busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgekit.flashload.errors import BudgetExceeded, InvalidRequest
from edgekit.flashload.sizes import size

DENSE_SMALL = "dense small"  # group of norms, routers, shared parts: little work per request
EXPERT = "expert"  # group of experts


@dataclass(frozen=True)
class Unit:
    """Something that is pinned or streamed as a whole: a run. `nbytes` is its length in memory.

    `group` names its kind ("dense small", "layer", "expert", "head", ...); pins are spread within a group.
    """

    name: str
    nbytes: int
    group: str


@dataclass(frozen=True)
class Plan:
    """A residency plan. All sizes are bytes; `units` and `streamed` are in execution order."""

    units: tuple[Unit, ...]
    pinned: frozenset[str]
    streamed: tuple[str, ...]
    ring_bytes: int
    pinned_bytes: int
    streamed_bytes: int
    budget_bytes: int

    @property
    def footprint_bytes(self) -> int:
        """Memory that the plan uses: pins and ring. At most `budget_bytes`."""
        return self.pinned_bytes + self.ring_bytes

    def describe(self, *, names: bool = False) -> list[str]:
        """The plan as lines of text; with `names` also one line per unit in execution order."""
        lines = [
            f"budget   {size(self.budget_bytes)}: {size(self.footprint_bytes)} used, "
            f"{size(self.budget_bytes - self.footprint_bytes)} left",
            f"pinned   {size(self.pinned_bytes)} in {len(self.pinned)} of {len(self.units)} units",
            f"streamed {size(self.streamed_bytes)} per step in {len(self.streamed)} units",
            f"ring     {size(self.ring_bytes)}" if self.ring_bytes else "ring     none: everything is pinned",
        ]
        for group in dict.fromkeys(unit.group for unit in self.units):
            members = [unit for unit in self.units if unit.group == group]
            kept = [unit for unit in members if unit.name in self.pinned]
            lines.append(
                f"  {group}: {len(kept)} of {len(members)} pinned, "
                f"{size(sum(unit.nbytes for unit in kept))} of {size(sum(unit.nbytes for unit in members))}"
            )
        if names:
            lines += [
                f"  {'pin   ' if unit.name in self.pinned else 'stream'} {unit.name} {size(unit.nbytes)}"
                for unit in self.units
            ]
        return lines


def plan(
    units: Sequence[Unit],
    budget_bytes: int,
    *,
    ring_bytes_min: int = 0,
    ring_units: int = 2,
    pin_first: Sequence[str] = (DENSE_SMALL, EXPERT),
) -> Plan:
    """Divide `units`, given in execution order, between pins and a ring within `budget_bytes`.

    If everything fits there is no ring. Otherwise the ring holds the `ring_units` largest streamed units and
    at least `ring_bytes_min`, and the rest of the budget is filled with pins: groups of `pin_first` in their
    order, then the others from the smallest group to the largest; within a group units
    of equal size are spread evenly over the cycle. More budget never pins fewer bytes.

    Raises BudgetExceeded (with the smallest sufficient budget) and InvalidRequest for bad arguments.
    """
    _check(units, budget_bytes, ring_bytes_min, ring_units)
    total = sum(unit.nbytes for unit in units)
    if total <= budget_bytes:
        return _result(units, {unit.name for unit in units}, 0, budget_bytes)

    largest_first = sorted((unit.nbytes for unit in units), reverse=True)
    needed = min(total, _ring_bytes(largest_first, ring_bytes_min, ring_units))
    if budget_bytes < needed:
        raise BudgetExceeded(
            f"a budget of {budget_bytes} bytes cannot stream this model; {needed} bytes would be enough",
            needed,
        )

    # Pinning the largest units shrinks the ring, which pays where one kind is much larger than the next (a
    # vocabulary head beside layers). Every bound for streamed units that shrinks it by a third is a
    # candidate; the one that pins the most bytes wins, the first on a tie. For one bound the pinned bytes
    # grow with the budget (kinds are filled in a fixed order), and the candidates do not depend on it, hence
    # they grow for the best.
    kinds = _kinds(units, pin_first)
    best: tuple[int, set[str]] = (-1, set())
    least_ring = 2 * total
    for bound in _bounds(largest_first):
        forced = [unit for unit in units if unit.nbytes > bound]
        forced_bytes = sum(unit.nbytes for unit in forced)
        if forced_bytes + bound > budget_bytes:
            break
        rest = [nbytes for nbytes in largest_first if nbytes <= bound]
        ring = _ring_bytes(rest, ring_bytes_min, ring_units)
        if 3 * ring > 2 * least_ring:
            continue
        least_ring = ring
        free = budget_bytes - forced_bytes - ring
        if free < 0:
            continue
        pinned = {unit.name for unit in forced}
        pinned_bytes = forced_bytes
        for kind in kinds:
            if kind[0].nbytes <= bound:
                count = min(len(kind), free // kind[0].nbytes)
                pinned.update(unit.name for unit in _spread(kind, count))
                pinned_bytes += count * kind[0].nbytes
                free -= count * kind[0].nbytes
        if pinned_bytes > best[0]:
            best = (pinned_bytes, pinned)
    streamed = sorted((unit.nbytes for unit in units if unit.name not in best[1]), reverse=True)
    return _result(units, best[1], _ring_bytes(streamed, ring_bytes_min, ring_units), budget_bytes)


def _check(units: Sequence[Unit], budget_bytes: int, ring_bytes_min: int, ring_units: int) -> None:
    if budget_bytes < 0 or ring_bytes_min < 0 or ring_units < 1:
        raise InvalidRequest(
            f"budget {budget_bytes} and ring {ring_bytes_min} must not be negative and the ring must "
            f"hold at least one unit, not {ring_units}"
        )
    names: set[str] = set()
    for unit in units:
        if unit.nbytes <= 0:
            raise InvalidRequest(f"unit {unit.name}: {unit.nbytes} bytes; a unit must have some")
        if unit.name in names:
            raise InvalidRequest(f"unit {unit.name}: listed twice")
        names.add(unit.name)


def _bounds(largest_first: Sequence[int]) -> list[int]:
    """The largest size, and every size that is at most two thirds of the next larger one.

    Smaller steps are no reason to pin the largest units: the few bytes won would cost the even spread.
    """
    sizes = sorted(set(largest_first), reverse=True)
    return sizes[:1] + [low for high, low in zip(sizes, sizes[1:], strict=False) if 3 * low <= 2 * high]


def _ring_bytes(largest_first: Sequence[int], ring_bytes_min: int, ring_units: int) -> int:
    """Ring for units of these sizes. More than all of them together would be wasted."""
    return min(sum(largest_first), max(ring_bytes_min, sum(largest_first[:ring_units])))


def _result(units: Sequence[Unit], pinned: set[str], ring_bytes: int, budget_bytes: int) -> Plan:
    return Plan(
        units=tuple(units),
        pinned=frozenset(pinned),
        streamed=tuple(unit.name for unit in units if unit.name not in pinned),
        ring_bytes=ring_bytes,
        pinned_bytes=sum(unit.nbytes for unit in units if unit.name in pinned),
        streamed_bytes=sum(unit.nbytes for unit in units if unit.name not in pinned),
        budget_bytes=budget_bytes,
    )


def _kinds(units: Sequence[Unit], pin_first: Sequence[str]) -> list[list[Unit]]:
    """Units of equal group and size, in the order in which they are considered for pinning."""
    groups: dict[str, list[Unit]] = {}
    for unit in units:
        groups.setdefault(unit.group, []).append(unit)
    first = {group: rank for rank, group in enumerate(pin_first)}
    ordered = sorted(
        groups.values(),
        key=lambda members: (first.get(members[0].group, len(first)), sum(unit.nbytes for unit in members)),
    )
    kinds: list[list[Unit]] = []
    for members in ordered:
        sizes: dict[int, list[Unit]] = {}
        position: dict[int, int] = {}
        for index, unit in enumerate(members):
            sizes.setdefault(unit.nbytes, []).append(unit)
            position.setdefault(unit.nbytes, index)
        # The most common size first; sizes that occur once in the order of halves, quarters, ... so that any
        # number of them is spread over the cycle.
        kinds += sorted(
            sizes.values(), key=lambda kind: (-len(kind), _bit_reversed(position[kind[0].nbytes]))
        )
    return kinds


def _bit_reversed(index: int) -> float:
    """Van der Corput sequence in base 2: 0, 1/2, 1/4, 3/4, 1/8, ..."""
    value, weight = 0.0, 0.5
    while index:
        value += weight * (index & 1)
        index >>= 1
        weight /= 2
    return value


def _spread(kind: Sequence[Unit], count: int) -> list[Unit]:
    """`count` of the units at even distances: unit i when floor((i+1)*count/L) > floor(i*count/L)."""
    total = len(kind)
    return [unit for i, unit in enumerate(kind) if (i + 1) * count // total > i * count // total]
