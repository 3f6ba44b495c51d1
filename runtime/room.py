"""How many sequences a memory budget has room for: looked at before anything runs."""

from __future__ import annotations

from collections.abc import Callable

from edgekit.flashload.errors import BudgetExceeded
from edgekit.flashload.sizes import size, size_up
from edgekit.runtime.generation import Generator, of_several
from edgekit.runtime.sampling import Lengths
from edgekit.runtime.session.memory import MemoryPlan


def lacking(generator: Generator, lengths: Lengths, count: int, beside: int = 0) -> int | None:
    """The budget that so many sequences of these lengths would need, with so many bytes held beside them;
    None where there is room for them. Raises what `Generator.plan` does for an engine that cannot be.
    """
    try:
        planned(generator, lengths, count, beside)
    except BudgetExceeded as error:
        return error.needed_bytes + beside
    return None


def planned(generator: Generator, lengths: Lengths, count: int, beside: int = 0) -> MemoryPlan:
    """The plan of a session for so many sequences of these lengths, with so many bytes held beside them.
    Raises BudgetExceeded, and as `lacking`.
    """
    return generator.plan(generator.session_options(of_several(lengths, count), count, beside))


def most(limit: int, fits: Callable[[int], bool]) -> int:
    """The most, up to a limit, that fit; of what fits, fewer do too."""
    fit, too_many = 0, limit + 1
    while too_many - fit > 1:
        middle = (fit + too_many) // 2
        if fits(middle):
            fit = middle
        else:
            too_many = middle
    return fit


def refusal(
    memory: int, needed: int, wanted: int, room: int, one: str, several: str, beside: str = ""
) -> BudgetExceeded:
    """The error for a budget with `room` for fewer than the `wanted` ones, which are called `one` or
    `several`; `beside` names what else it holds.
    """
    has = f"no room for a {one} of these lengths"
    if room:
        has = f"room for {room} {several if room > 1 else one} of these lengths, not {wanted}"
    instead = f"take {room}, or " if room else ""
    return BudgetExceeded(
        f"the memory budget of {size(memory)} has {has}{beside}; {instead}give {size_up(needed)}", needed
    )
