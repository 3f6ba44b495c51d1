"""Reads and products of a step beside each other: the ring decides how far reading is ahead of computing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

#: Steps after which the next one takes what every later one takes.
_SETTLED = 3


@dataclass(frozen=True)
class Stage:
    """Weights of one unit in their turn: bytes that are read for it, 0 of what stays in memory, and seconds
    that computing with it takes.
    """

    name: str
    part: str
    read_bytes: float
    seconds: float


@dataclass(frozen=True)
class Span:
    """When a stage was read and computed, in seconds from the beginning of its step; what is read ahead of it
    began before.
    """

    stage: Stage
    read_began: float
    read_ended: float
    began: float
    ended: float


def simulate(stages: Sequence[Stage], ring_bytes: float, bytes_per_second: float) -> list[Span]:
    """The spans of a step that follows many of its kind. Reads go one after the other in the order of use,
    each as soon as the ring has room for it; a stage is computed when it is there and the one before is done,
    and then gives its room back.
    """
    count = len(stages)
    kept = [min(stage.read_bytes, ring_bytes) for stage in stages]
    seconds = [stage.read_bytes / bytes_per_second for stage in stages]
    spans: list[tuple[float, float, float, float]] = []  # plain numbers: there are thousands for each plan
    held = oldest = 0.0  # bytes in the ring, and when its room was last given back
    given_back, reader, computed = 0, 0.0, 0.0
    for number in range(count * _SETTLED):
        index = number % count
        nbytes = kept[index]
        while held + nbytes > ring_bytes and given_back < number:
            held -= kept[given_back % count]
            oldest, given_back = spans[given_back][-1], given_back + 1
        held += nbytes
        if nbytes:
            read_began = max(reader, oldest)
            reader = read_ended = read_began + seconds[index]
            began = max(computed, read_ended)
        else:
            read_began = read_ended = began = computed
        computed = began + stages[index].seconds
        spans.append((read_began, read_ended, began, computed))
    before = spans[-count - 1][-1]
    return [
        Span(stage, *(at - before for at in span)) for stage, span in zip(stages, spans[-count:], strict=True)
    ]


def waiting_seconds(spans: Sequence[Span]) -> float:
    """Of a step, spent without weights to compute with."""
    first = [spans[0].began] if spans else []
    return sum(first) + sum(after.began - before.ended for before, after in pairwise(spans))
