"""Engines whose memory the session cannot read, and whose work is done after their calls have returned."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from ctypes import c_uint64, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.far_engine import FAR, LYING, NEAR, OWN_MEMORY, far_sessions, opened
from support.native_bundles import three_layers
from support.pass_kinds import assert_equal, request, texts

from edgekit.flashload import _native
from edgekit.flashload.errors import BudgetExceeded, EdgekitError
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.core_structs import MEMORY_FUNCTION_TYPES, EngineStruct
from edgekit.runtime.errors import EngineFailed
from edgekit.runtime.generation import Generator, Prompt, Settings
from edgekit.runtime.sampling import Committed, HeadOutput, HeadRequest
from edgekit.runtime.session import Segment, Session, SessionOptions, plan_session
from edgekit.runtime.session.memory import MemoryPlan

MODES = pytest.mark.parametrize("mode", [OWN_MEMORY, FAR], ids=["own-memory", "far"])


class Model(NamedTuple):
    bundle: Path
    least: int  # memory


LENGTHS: dict[str, Any] = {"positions": 96, "canvas": 16, "sequences": 3}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return three_layers(tmp_path_factory)


def options(bundle: Path, how: str) -> SessionOptions:
    if how == "resident":
        return SessionOptions(**LENGTHS)
    if how == "streamed":
        return SessionOptions(resident_bytes=0, **LENGTHS)
    with pytest.raises(BudgetExceeded) as told:
        Session(bundle, SessionOptions(memory_bytes=1, **LENGTHS))
    return SessionOptions(memory_bytes=told.value.needed_bytes + (2 << 20), resident_bytes=0, **LENGTHS)


@MODES
@pytest.mark.parametrize("how", ["resident", "streamed", "least"])
@pytest.mark.parametrize("family", ["diffusion_gemma", "llada"])
def test_passes_are_the_same_wherever_memory_is_and_whenever_work_is_done(
    bundles: Callable[[str], Path], family: str, how: str, mode: int
) -> None:
    bundle = bundles(family)
    causal = family == "diffusion_gemma"
    with Session(bundle, options(bundle, how)) as session:
        native = texts(session, causal)
    with opened(bundle, lambda: options(bundle, how), NEAR) as (session, _):
        near = texts(session, causal)
    # All but the sums, which the native head takes in another order.
    assert_equal(near, native, ("argmax", "logits", "sample", "top_ids", "top_z"))
    for seed in range(3):
        with opened(bundle, lambda: options(bundle, how), mode, seed) as (session, engine):
            assert_equal(texts(session, causal), near)
            # The next unit is submitted before the one before has been waited for.
            assert (engine.count("behind") > 0) == (mode == FAR)


@pytest.mark.parametrize("how", ["resident", "streamed"])
@pytest.mark.parametrize("family", ["diffusion_gemma", "llada"])
def test_generations_are_the_same(shipped_bundle: Callable[..., Path], family: str, how: str) -> None:
    bundle = shipped_bundle({"diffusion_gemma": "tiny-gemma", "llada": "tiny-llada"}[family], "native")
    resident = {"resident": None, "streamed": 0}[how]

    def answer() -> list[int]:
        with Generator(bundle, resident_bytes=resident) as generator:
            prompt, settings = Prompt("Copy this: Ada 7 cat"), Settings(max_new_tokens=16, steps=8, seed=3)
            events = generator.generate(prompt, settings)
            return list(itertools.chain(*(e.ids.tolist() for e in events if isinstance(e, Committed))))

    expected = answer()
    with far_sessions(bundle, FAR) as engine:
        assert answer() == expected
        assert engine.count("submitted") > 0 and engine.count("violations") == 0


def test_tables_and_masks_of_a_canvas_are_copied_once(bundles: Callable[[str], Path]) -> None:
    with opened(bundles("diffusion_gemma"), lambda: SessionOptions(**LENGTHS), FAR) as (session, engine):
        session.prefill(np.arange(20))
        session.denoise(np.arange(7), HeadRequest())
        before = engine.count("copied_inputs")
        for _ in range(3):
            session.denoise(np.arange(7), HeadRequest())
        assert engine.count("copied_inputs") == before
        session.prefill(np.arange(3))
        session.denoise(np.arange(7), HeadRequest())
        assert engine.count("copied_inputs") > before


# --- weights that the engine keeps --------------------------------------------------------------------------


ALL = 1 << 30


@pytest.mark.parametrize("most_kept", [ALL, 5, 0], ids=["as-it-said", "five-units", "none"])
@pytest.mark.parametrize("share", [0.3, 0.7, 2.0])
@pytest.mark.parametrize("how", ["resident", "streamed", "least"])
@pytest.mark.parametrize("family", ["diffusion_gemma", "llada"])
def test_weights_may_lie_with_the_engine_in_memory_and_on_the_disk(
    bundles: Callable[[str], Path], family: str, how: str, share: float, most_kept: int
) -> None:
    """To the bit; each unit is in one place, and those with the engine are read once, also where it has room
    for fewer than it said.
    """
    bundle, causal = bundles(family), family == "diffusion_gemma"
    with opened(bundle, lambda: options(bundle, how), NEAR) as (session, _):
        near, everything = texts(session, causal), session.plan.weights_bytes
    room = {"room": int(share * everything), "most_kept": most_kept}
    with opened(bundle, lambda: options(bundle, how), FAR, 1, **room) as (session, engine):
        plan, opening = session.plan, session.statistics()["bytes_read"]
        assert plan.kept_bytes <= room["room"] and engine.count("kept") <= most_kept
        kept = {unit.name for unit in plan.units if unit.kept}
        assert len(kept) == engine.count("kept")
        # Tokens are looked up in a table that is the head as well.
        assert not causal or all(name.startswith("embedding.") for name in kept & plan.pinned)
        assert causal or not kept & plan.pinned
        assert plan.kept_bytes == sum(unit.nbytes for unit in plan.units if unit.kept)
        if most_kept == ALL:
            others = [unit for unit in plan.units if not unit.kept and unit.group != "embedding"]
            assert all(unit.nbytes > room["room"] - plan.kept_bytes for unit in others)
            assert bool(others) == (share < 1)
        if how == "resident":
            assert plan.streamed_bytes == 0
        assert_equal(texts(session, causal), near)
        read = session.statistics()["bytes_read"] - opening
        assert (read == 0) == (plan.streamed_bytes == 0)


def test_experts_change_places_beside_those_that_the_engine_keeps(bundles: Callable[[str], Path]) -> None:
    bundle = bundles("diffusion_gemma")
    with Session(bundle, SessionOptions(**LENGTHS)) as session:
        everything = session.plan.weights_bytes

    def passes(room: int) -> list[HeadOutput]:
        half = SessionOptions(resident_bytes=everything // 3, **LENGTHS)
        with opened(bundle, lambda: half, FAR, room=room, most_kept=ALL) as (session, engine):
            session.prefill(np.arange(9))
            found = []
            for n in range(40):
                found.append(session.denoise(np.arange(n % 3, n % 3 + 2), HeadRequest(logits=True)))
                session.idle()
            assert (engine.count("kept") > 0) == (room > 0)
            return found

    assert_equal(passes(everything // 3), passes(0))


def test_memory_is_given_back_beside_weights_that_the_engine_keeps(bundles: Callable[[str], Path]) -> None:
    bundle = bundles("diffusion_gemma")
    with opened(bundle, lambda: SessionOptions(**LENGTHS), FAR, room=60_000, most_kept=ALL) as (session, _):
        before, plan = tried(session, True), session.plan
        core = _native.functions({"ek_session_limit_resident": (c_void_p, c_uint64)})
        assert core.ek_session_limit_resident(session._handle, plan.pinned_bytes // 3) == 0
        assert_equal([tried(session, True)], [before])
        less = session.plan
        assert less.pinned_bytes < plan.pinned_bytes and less.kept_bytes == plan.kept_bytes > 0
        streamed = [unit for unit in less.units if not (unit.pinned or unit.kept)]
        assert less.streamed_bytes == sum(unit.nbytes for unit in streamed) > 0


def test_a_session_whose_weights_the_engine_fails_to_keep_is_not_opened(
    bundles: Callable[[str], Path],
) -> None:
    bundle = bundles("llada")
    with far_sessions(bundle, FAR, room=ALL, most_kept=ALL) as engine:
        engine.fail_at("keep", 3, False)
        with pytest.raises(EngineFailed, match="the far engine failed in keeping .*: an injected failure"):
            Session(bundle, SessionOptions(**LENGTHS))
        assert engine.count("lent") == 0 and engine.count("violations") == 0


@pytest.mark.parametrize("family", ["diffusion_gemma", "llada"])
def test_a_budget_does_not_count_what_the_engine_keeps(bundles: Callable[[str], Path], family: str) -> None:
    """Where all weights are with the engine, memory for the largest on its way is enough, and no less."""
    bundle = Bundle.open(bundles(family))
    with far_sessions(bundle.path, FAR, room=ALL):

        def plan(memory: int | None) -> MemoryPlan:
            return plan_session(bundle, SessionOptions(memory_bytes=memory, **LENGTHS), process_bytes=0)

        free = plan(None)
        step = [unit for unit in free.units if unit.group != "embedding"]
        assert all(unit.kept for unit in step) and (free.ring_bytes, free.streamed_bytes) == (0, 0)
        largest = max(unit.nbytes for unit in step)
        assert plan(free.needs + largest).kept_bytes == free.kept_bytes
        with pytest.raises(BudgetExceeded, match="is too small"):
            plan(free.needs + largest - 1)


# --- failures -----------------------------------------------------------------------------------------------

FUNCTIONS = {
    "diffusion_gemma": ("route", "expert", "join", "self_condition"),
    "llada": ("layers",),
}
EVERYWHERE = "final", "tile", "copy", "wait", "allocate"


def tried(session: Session, causal: bool) -> HeadOutput:
    session.reset()
    if causal:
        session.prefill(np.arange(21))
    return session.denoise(np.arange(5, 12), request(session.vocab_size))


@pytest.mark.parametrize("later", [False, True], ids=["when-called", "when-done"])
@pytest.mark.parametrize("how", ["resident", "streamed"])
@pytest.mark.parametrize(
    ("family", "function"),
    [(family, function) for family in FUNCTIONS for function in FUNCTIONS[family] + EVERYWHERE],
)
def test_a_failure_ends_the_pass_in_one_line_and_nothing_else(
    bundles: Callable[[str], Path], family: str, function: str, how: str, later: bool
) -> None:
    causal = family == "diffusion_gemma"
    bundle, struck = bundles(family), 0
    for nth in (1, 2, 3, 9):
        with opened(bundle, lambda: options(bundle, how), FAR, nth) as (session, engine):
            if function == "allocate":
                # What a session opens with is there.
                engine.fail_at(function, nth, later)
                try:
                    tried(session, causal)
                except EdgekitError as error:
                    struck += 1
                    check_line(str(error), "no memory left" if later else "no memory is left")
                engine.fail_at("", 0, False)
                expected = tried(session, causal)
            else:
                expected = tried(session, causal)
                kept = session.prefix_length
                engine.fail_at(function, nth, later)
                try:
                    session.denoise(np.arange(5, 12), request(session.vocab_size))
                except EngineFailed as error:
                    struck += 1
                    check_line(str(error), f"failure of {function}")
                    assert session.prefix_length == kept
                engine.fail_at("", 0, False)
            found = tried(session, causal)
            assert_equal([found], [expected])
    assert struck >= 1


def check_line(message: str, words: str) -> None:
    assert words in message and "the far engine" in message and "\n" not in message


@pytest.mark.parametrize("later", [False, True], ids=["when-called", "when-done"])
def test_kept_rows_that_are_half_moved_are_no_longer_kept(
    bundles: Callable[[str], Path], later: bool
) -> None:
    """Rows that replace others move at the end of a pass; a failure then leaves neither old text nor new."""
    bundle, outcomes = bundles("diffusion_gemma"), set()
    for nth in range(1, 12):
        with opened(bundle, lambda: SessionOptions(**LENGTHS), FAR) as (session, engine):
            session.prefill(np.arange(30))
            before = session.denoise(np.arange(7), HeadRequest(logits=True))
            engine.fail_at("copy", nth, later)
            try:
                session.run_pass([Segment(session.sequence, np.arange(40, 44), causal=True, keep_at=26)])
            except EngineFailed:
                engine.fail_at("", 0, False)
                outcomes.add(session.prefix_length)
                if session.prefix_length != 0:
                    after = session.denoise(np.arange(7), HeadRequest(logits=True))
                    assert_equal([after], [before])
            else:
                outcomes.add(-1)
    assert outcomes == {30, 0, -1}


@MODES
def test_a_session_that_gets_no_memory_is_not_opened(bundles: Callable[[str], Path], mode: int) -> None:
    with far_sessions(bundles("diffusion_gemma"), mode) as engine:
        for nth, later in itertools.product((1, 2, 3), (False, True)):
            engine.fail_at("allocate", nth, later)
            with pytest.raises(EdgekitError, match="no memory"):
                Session(bundles("diffusion_gemma"), SessionOptions(**LENGTHS))
            assert engine.count("blocks") == 0
        assert engine.count("allocated") == 2 * (0 + 1 + 2)


def test_a_session_whose_memory_for_weights_is_not_taken_is_not_opened(
    bundles: Callable[[str], Path],
) -> None:
    bundle = bundles("llada")
    with far_sessions(bundle, FAR) as engine:
        for how in ("resident", "streamed"):
            engine.fail_at("lend", 1, False)
            with pytest.raises(EngineFailed, match="the far engine failed in taking .* bytes of weights: an"):
                Session(bundle, options(bundle, how))
            assert engine.count("lent") == 0


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_memory_of_weights_that_are_given_back_is_no_longer_lent(
    bundles: Callable[[str], Path], failing: int
) -> None:
    """The rest is lent again; where the engine does not take it, it computes all the same."""
    bundle = bundles("llada")
    with opened(bundle, lambda: SessionOptions(**LENGTHS), FAR) as (session, engine):
        before, plan = tried(session, False), session.plan
        engine.fail_at("lend", failing, False)
        core = _native.functions({"ek_session_limit_resident": (c_void_p, c_uint64)})
        assert core.ek_session_limit_resident(session._handle, plan.pinned_bytes // 2) == 0
        after = tried(session, False)
        assert_equal([after], [before])
        assert session.plan.pinned_bytes < plan.pinned_bytes
        if failing:
            engine.forgive()


def test_a_copy_of_a_sequence_that_gets_no_memory_is_none(bundles: Callable[[str], Path]) -> None:
    with opened(bundles("diffusion_gemma"), lambda: SessionOptions(**LENGTHS), FAR) as (session, engine):
        session.prefill(np.arange(9))
        expected = session.denoise(np.arange(7), HeadRequest(logits=True))
        for function, later in itertools.product(("allocate", "copy"), (False, True)):
            engine.fail_at(function, 1, later)
            with pytest.raises(EdgekitError, match="the far engine"):
                session.sequence.copy()
        copy = session.sequence.copy()
        assert_equal([copy.denoise(np.arange(7), HeadRequest(logits=True))], [expected])


def test_tables_that_lack_functions_are_refused(
    bundles: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundles("llada")
    with far_sessions(bundle, FAR) as engine:
        whole = EngineStruct.from_buffer_copy(engine.table)
        for missing in ("allocate", "release", "copy"):
            setattr(engine.table, missing, MEMORY_FUNCTION_TYPES[missing]())
            with pytest.raises(EdgekitError, match="no function allocate, release or copy"):
                Session(bundle)
            engine.table = EngineStruct.from_buffer_copy(whole)
        engine.table.wait = MEMORY_FUNCTION_TYPES["wait"]()
        with (
            pytest.raises(EngineFailed, match="under way, but has no functions allocate, release, copy"),
            Session(bundle, SessionOptions(**LENGTHS)) as session,
        ):
            session.denoise(np.arange(5), HeadRequest())


def test_an_engine_with_memory_of_its_own_takes_more(bundles: Callable[[str], Path]) -> None:
    """What is written for its memory, and a second set of answers while a tile is under way."""
    plans = []
    for mode in (NEAR, OWN_MEMORY, FAR):
        with opened(bundles("diffusion_gemma"), lambda: SessionOptions(**LENGTHS), mode) as (session, _):
            tried(session, True)
            plans.append(session.plan)
    near, own, far = plans
    assert near.activations < own.activations == far.activations
    assert near.head == own.head < far.head


def test_weights_that_are_given_back_too_early_are_found_out(bundles: Callable[[str], Path]) -> None:
    """The tests above can fail."""
    found = []
    for mode in (OWN_MEMORY, LYING):
        with opened(bundles("llada"), lambda: options(bundles("llada"), "streamed"), mode) as (session, _):
            found.append(session.denoise(np.arange(5), HeadRequest()).entropy)
    assert np.isfinite(found[0]).all() and not np.array_equal(found[0], found[1])
