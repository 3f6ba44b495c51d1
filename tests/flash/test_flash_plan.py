"""The residency plan: promises that must hold for every model and every budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.native_plan import DENSE_SMALL, EXPERT, SPARSE, Plan, Unit, plan

from edgekit.flashload.errors import BudgetExceeded, InvalidRequest
from edgekit.flashload.sizes import size

GROUPS = st.sampled_from([DENSE_SMALL, "layer", EXPERT, SPARSE, "head"])


@st.composite
def models(draw: st.DrawFn) -> list[Unit]:
    sizes = st.one_of(st.sampled_from([8, 16, 64]), st.integers(1, 200))
    rings = draw(st.sampled_from([st.just(0), st.just(1), st.integers(0, 1)]))
    rows = draw(st.lists(st.tuples(sizes, GROUPS, rings), min_size=1, max_size=24))
    return [Unit(f"u{i}", nbytes, group, ring) for i, (nbytes, group, ring) in enumerate(rows)]


def largest_of(units: list[Unit], count: int) -> list[int]:
    """Bytes of the largest units of each ring."""
    each = [sorted((u.nbytes for u in units if u.ring == ring), reverse=True) for ring in (0, 1)]
    return [sum(own[:count]) for own in each]


BUDGETS = st.integers(0, 3000)
RINGS = st.integers(0, 300)
COUNTS = st.integers(1, 3)


@given(models(), BUDGETS, RINGS, COUNTS)
def test_a_plan_keeps_its_promises(units: list[Unit], budget: int, ring_min: int, ring_units: int) -> None:
    total = sum(unit.nbytes for unit in units)
    try:
        result = plan(units, budget, ring_bytes_min=ring_min, ring_units=ring_units)
    except BudgetExceeded as error:
        assert budget < error.needed_bytes <= total
        plan(units, error.needed_bytes, ring_bytes_min=ring_min, ring_units=ring_units)
        return
    size = {unit.name: unit.nbytes for unit in units}
    assert result.footprint_bytes == result.pinned_bytes + result.ring_bytes <= budget
    assert result.streamed == tuple(unit.name for unit in units if unit.name not in result.pinned)
    assert result.pinned | set(result.streamed) == set(size)
    assert result.pinned_bytes == sum(size[name] for name in result.pinned)
    assert result.pinned_bytes + result.streamed_bytes == total
    if total <= budget:
        assert not result.streamed and result.ring_bytes == 0
    else:
        streamed = [unit for unit in units if unit.name in result.streamed]
        parts = result.first_ring_bytes, result.ring_bytes - result.first_ring_bytes
        least, whole = largest_of(streamed, ring_units), largest_of(streamed, len(streamed))
        assert result.ring_bytes >= min(max(ring_min, sum(least)), sum(whole))
        assert all(part >= own for part, own in zip(parts, least, strict=True))
        assert parts[0] <= whole[0] and parts[1] <= whole[1] + 1
        # The budget is used: what is left holds no streamed unit beside the largest ring this model can need.
        reserve = min(max(ring_min, sum(largest_of(units, ring_units))), total)
        assert budget - result.pinned_bytes - reserve < max(unit.nbytes for unit in streamed)


@given(models(), BUDGETS, BUDGETS, RINGS, COUNTS)
def test_more_budget_never_pins_fewer_bytes(
    units: list[Unit], one: int, other: int, ring_min: int, ring_units: int
) -> None:
    def pinned(budget: int) -> int:
        try:
            return plan(units, budget, ring_bytes_min=ring_min, ring_units=ring_units).pinned_bytes
        except BudgetExceeded:
            return -1

    small, large = sorted((one, other))
    assert pinned(small) <= pinned(large)


@given(models(), BUDGETS)
def test_the_needed_budget_is_the_smallest_one(units: list[Unit], budget: int) -> None:
    try:
        plan(units, budget)
    except BudgetExceeded as error:
        assert str(error.needed_bytes) in str(error)
        plan(units, error.needed_bytes)
        with pytest.raises(BudgetExceeded):
            plan(units, error.needed_bytes - 1)


@given(st.integers(3, 60), st.data())
def test_equal_units_are_pinned_at_even_distances(count: int, data: st.DataObject) -> None:
    units = [Unit(f"layer{i}", 100, "layer") for i in range(count)]
    pins = data.draw(st.integers(0, count - 3))
    result = plan(units, 200 + 100 * pins + data.draw(st.integers(0, 99)))
    assert len(result.pinned) == pins
    expected = {f"layer{i}" for i in range(count) if (i + 1) * pins // count > i * pins // count}
    assert result.pinned == expected
    if pins:
        streaks = max(len(s) for s in "".join("p" if u.name in expected else "s" for u in units).split("p"))
        assert streaks <= -(-count // pins)


def mixture(experts: str = EXPERT) -> list[Unit]:
    units: list[Unit] = []
    for layer in range(6):
        units.append(Unit(f"{layer}.norms", 2, DENSE_SMALL))
        units.append(Unit(f"{layer}.dense", 30, "dense"))
        units += [Unit(f"{layer}.experts.{group}", 50, experts) for group in range(4)]
    return [*units, Unit("head", 120, "head")]


def test_small_units_are_pinned_first_then_experts_then_dense_ones() -> None:
    units = mixture()
    small = {unit.name for unit in units if unit.group == DENSE_SMALL}
    experts = {unit.name for unit in units if unit.group == EXPERT}
    assert plan(units, 170 + 12).pinned == small
    tight = plan(units[:-1], 100 + 12 + 105)
    assert tight.pinned > small and tight.pinned - small <= experts
    # The head is the largest unit: pinning it shrinks the ring to two experts.
    roomy = plan(units, 12 + 120 + 100 + 300)
    assert roomy.pinned >= small | {"head"} and roomy.ring_bytes == 100
    assert len(roomy.pinned & experts) == 6
    assert plan(units, 12 + 120 + 60 + 1200 + 30).pinned >= small | {"head"} | experts


def test_sparse_experts_are_pinned_last() -> None:
    units = mixture(SPARSE)
    experts = {unit.name for unit in units if unit.group == SPARSE}
    others = {unit.name for unit in units} - experts
    dense = plan(units[:-1], 100 + 12 + 105)
    assert len(dense.pinned) == 6 + 3 and not dense.pinned & experts
    roomy = plan(units, 12 + 180 + 120 + 100 + 300)
    assert roomy.pinned > others and len(roomy.pinned & experts) == 6
    assert {name.split(".")[0] for name in roomy.pinned & experts} == {str(layer) for layer in range(6)}


def test_a_ring_of_a_given_size_is_no_reason_to_pin_the_largest_units() -> None:
    units = mixture()
    assert "head" not in plan(units, 12 + 120 + 260 + 300, ring_bytes_min=260).pinned


def test_sizes_up_to_the_largest_file() -> None:
    for first in (2**62, 2**63 - 2**61, 2**63 - 10):
        units = [Unit("a", first, "g"), Unit("b", 2**63 - 1 - first, "g")]
        for budget, pinned in ((2**63 - 2, 0), (2**63 - 1, 2), (2**64 - 1, 2), (2**80, 2)):
            try:
                assert len(plan(units, budget, ring_units=1).pinned) >= pinned
            except BudgetExceeded as error:
                assert not pinned and error.needed_bytes <= 2**63 - 1


def test_units_of_unequal_size_are_spread_too() -> None:
    units = [Unit(f"layer{i}", 1000 + i, "layer") for i in range(32)]
    result = plan(units, 2063 + 8 * 1040)
    positions = [i for i, unit in enumerate(units) if unit.name in result.pinned]
    assert len(positions) == 8
    assert [position // 4 for position in positions] == list(range(8))


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (999, "999 B"),
        (1000, "1 kB"),
        (122_700_000, "123 MB"),
        (999_499_999, "999 MB"),
        (15_400_000_000, "15.4 GB"),
    ],
)
def test_sizes_are_short_and_decimal(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


def test_no_units_need_no_memory() -> None:
    assert plan([], 0) == Plan((), frozenset(), (), 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("units", "budget", "options", "message"),
    [
        ([Unit("a", 0, "g")], 10, {}, "0 bytes"),
        ([Unit("a", 1, "g"), Unit("a", 1, "g")], 10, {}, "listed twice"),
        ([Unit("a", 1, "g")], -1, {}, "negative"),
        ([Unit("a", 1, "g")], 1, {"ring_bytes_min": -1}, "negative"),
        ([Unit("a", 1, "g")], 1, {"ring_units": 0}, "at least one unit"),
    ],
)
def test_bad_arguments_are_refused(
    units: list[Unit], budget: int, options: dict[str, int], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        plan(units, budget, **options)
