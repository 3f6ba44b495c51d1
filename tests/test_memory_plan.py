"""Budgets that errors name: enough, and the least that is."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from native_plan import Plan, Unit

from edgekit.flashload.errors import BudgetExceeded
from edgekit.runtime.memory import RING_MOST, divide

#: Lengths of runs: multiples of 16 KiB up to half a gigabyte, small and large ones alike.
_BYTES = st.one_of(st.integers(1, 64), st.integers(1, 32_768)).map(lambda blocks: blocks << 14)


@st.composite
def weights(draw: st.DrawFn) -> tuple[list[Unit], list[Unit], int]:
    """Units of a step, those that are looked up, and how many must be in memory at once."""
    layers, experts = draw(st.integers(1, 6)), draw(st.sampled_from([0, 0, 1, 4]))
    layer, expert, tile = draw(_BYTES), draw(_BYTES), draw(_BYTES)
    step = []
    for i in range(layers):
        step.append(Unit(f"layers.{i}", layer, "layer"))
        step += [Unit(f"layers.{i}.experts.{e}", expert, "expert") for e in range(experts)]
    step.append(Unit("final", 1 << 14, "dense small"))
    step += [Unit(f"head.{i}", tile, "head") for i in range(draw(st.integers(1, 4)))]
    looked_up = [Unit(f"embedding.{i}", tile, "embedding") for i in range(draw(st.integers(0, 3)))]
    return step, looked_up, 3 if experts else 2


resident = st.one_of(st.none(), st.just(0), st.integers(0, 1 << 31))


def least(step: Sequence[Unit], looked_up: Sequence[Unit], ring_units: int, cap: int | None) -> int:
    """The budget that the refusal of none at all names."""
    try:
        divide(step, looked_up, ring_units, 0, cap)
    except BudgetExceeded as error:
        return error.needed_bytes
    raise AssertionError("nothing fits into no memory")


@given(weights(), resident)
def test_the_named_budget_is_enough_and_a_byte_less_is_not(
    given_weights: tuple[list[Unit], list[Unit], int], cap: int | None
) -> None:
    step, looked_up, ring_units = given_weights
    named = least(step, looked_up, ring_units, cap)
    fits(divide(step, looked_up, ring_units, named, cap), named, cap)
    try:
        divide(step, looked_up, ring_units, named - 1, cap)
    except BudgetExceeded as error:
        assert error.needed_bytes == named
    else:
        raise AssertionError(f"{named - 1} bytes are enough, {named} were named")


@given(weights(), resident, st.integers(-(1 << 32), 1 << 33))
def test_every_other_budget_fits_or_names_the_same(
    given_weights: tuple[list[Unit], list[Unit], int], cap: int | None, budget: int
) -> None:
    step, looked_up, ring_units = given_weights
    named = least(step, looked_up, ring_units, cap)
    try:
        fits(divide(step, looked_up, ring_units, budget, cap), budget, cap)
    except BudgetExceeded as error:
        assert budget < named == error.needed_bytes
    else:
        assert budget >= named


@given(weights(), resident)
def test_without_a_budget_there_is_always_a_plan(
    given_weights: tuple[list[Unit], list[Unit], int], cap: int | None
) -> None:
    step, looked_up, ring_units = given_weights
    plan = divide(step, looked_up, ring_units, None, cap)
    assert cap is not None or not plan.streamed


def fits(plan: Plan, budget: int, cap: int | None) -> None:
    assert plan.footprint_bytes <= budget
    assert cap is None or plan.pinned_bytes <= cap
    assert plan.ring_bytes <= max(RING_MOST, 3 * max(unit.nbytes for unit in plan.units))
