"""The core's division of a memory budget: what a plan holds, and the budgets that errors name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bundles import make_bundle

from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import BudgetExceeded
from edgekit.runtime import engines
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engines.base import Engine, EngineBytes, Lengths
from edgekit.runtime.session import SessionOptions, plan_session
from edgekit.runtime.session.memory import NEXT_PROCESS_BYTES, MemoryPlan

#: What reading ahead takes at most where two runs take less.
RING_MOST = 256 << 20


class Bundles:
    """Bundles with and without experts, and with an embedding that is not the head."""

    def __init__(self, folder: Path) -> None:
        shapes = {
            "diffusion_gemma": {"num_hidden_layers": 3},
            "llada": {"d_model": 256, "mlp_hidden_size": 704, "n_layers": 4, "vocab_size": 1000},
        }
        self.each: dict[str, tuple[Bundle, Engine]] = {}
        for family, options in shapes.items():
            bundle = Bundle.open(make_bundle(folder / family, family, Scheme("mixed4"), **options))
            engine = engines.create(bundle, 1)
            assert engine is not None
            engine.memory = lambda *a: EngineBytes(7, 11, 13, 17)  # type: ignore[method-assign]
            self.each[family] = bundle, engine

    def plan(self, family: str, budget: int | None, cap: int | None = None) -> MemoryPlan:
        bundle, engine = self.each[family]
        options = SessionOptions(budget, cap, positions=9, canvas=5)
        return plan_session(bundle, options, engine, process_bytes=1000)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    return Bundles(tmp_path_factory.mktemp("plans"))


FAMILIES = st.sampled_from(["diffusion_gemma", "llada"])
CAPS = st.one_of(st.none(), st.just(0), st.integers(0, 3 << 20))


def fits(plan: MemoryPlan, cap: int | None) -> None:
    assert plan.pinned_bytes == sum(unit.nbytes for unit in plan.units if unit.pinned)
    assert plan.weights_bytes == sum(unit.nbytes for unit in plan.units)
    assert plan.streamed_bytes == sum(u.nbytes for u in plan.units if u.name in plan.streamed)
    assert bool(plan.ring_bytes) == bool(plan.streamed)
    assert cap is None or plan.pinned_bytes <= cap
    assert plan.ring_bytes <= max(RING_MOST, 3 * max(unit.nbytes for unit in plan.units))


def test_needs_are_what_the_engine_states_and_what_the_session_holds(made: Bundles) -> None:
    plan = made.plan("diffusion_gemma", None)
    assert (plan.process, plan.scratch, plan.allowance) == (1000, 11, 17)
    assert plan.activations > 7 and plan.head > 13 and plan.prefix > 0
    assert plan.needs == 1000 + plan.prefix + plan.activations + 11 + plan.head + 17
    assert made.plan("llada", None).prefix == 0


@given(FAMILIES, CAPS, st.integers(1, 1 << 25))
def test_a_budget_fits_or_names_one_that_does(
    made: Bundles, family: str, cap: int | None, budget: int
) -> None:
    least = made.plan(family, None, cap).least_memory_bytes
    try:
        plan = made.plan(family, budget, cap)
        assert budget >= least - NEXT_PROCESS_BYTES
    except BudgetExceeded as error:
        assert budget < error.needed_bytes == least
        plan = made.plan(family, budget := least, cap)
    assert plan.needs + plan.footprint_bytes <= budget
    fits(plan, cap)


@given(FAMILIES, st.integers(0, 1 << 24), st.integers(0, 1 << 24))
def test_more_memory_never_keeps_less(made: Bundles, family: str, a: int, b: int) -> None:
    least = made.plan(family, None).least_memory_bytes
    small, large = (made.plan(family, least + more) for more in sorted((a, b)))
    assert small.pinned_bytes <= large.pinned_bytes


@given(FAMILIES, CAPS)
def test_without_a_budget_there_is_always_a_plan(made: Bundles, family: str, cap: int | None) -> None:
    plan = made.plan(family, None, cap)
    fits(plan, cap)
    assert cap is not None or not plan.streamed


def test_a_resident_limit_above_all_weights_keeps_them_all(made: Bundles) -> None:
    plan = made.plan("diffusion_gemma", None, 1 << 40)
    assert not plan.streamed and plan.ring_bytes == 0
    assert replace(plan, units=()) == replace(made.plan("diffusion_gemma", None), units=())


def test_longer_passes_are_stated_to_the_engine(made: Bundles) -> None:
    bundle, engine = made.each["diffusion_gemma"]
    told: list[Lengths] = []
    engine.memory = lambda _, lengths: told.append(lengths) or EngineBytes()  # type: ignore[method-assign,func-returns-value]
    try:
        plan_session(bundle, SessionOptions(positions=90, canvas=5), engine)
    finally:
        engine.memory = lambda *a: EngineBytes(7, 11, 13, 17)  # type: ignore[method-assign]
    canvas = bundle.model.canvas_length or 0
    asked = Lengths(rows=max(5, min(canvas, 90)), kept=90, segments=1, head_rows=5)
    assert told[0] == asked
    assert all(replace(other, segments=1) == asked for other in told), "but for how many fit"
