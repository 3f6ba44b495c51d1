"""The order of LogicDiff: roles before confidence, within a block, against a plain loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_denoiser import FakeDenoiser
from support.logic_order import (
    CONCLUSION,
    CONNECTIVE,
    DERIVED,
    FILLER,
    PREMISE,
    ProjectingRoles,
    RoleDenoiser,
    random_roles,
    unmasked,
)
from support.sampler_runs import committed, finish, run, saved_run, settled

from edgekit.runtime.sampling import Draft, Event, HeadOutput, InvalidOption, SamplerModel, settle
from edgekit.runtime.sampling.types import ROLES, Floats, Ids

VOCAB = 40
MASK, EOS = 39, 38
PROMPT = [3, 1, 4, 1, 5]
FAMILIES = ("llada", "dream")


def options_of(family: str, **options: Any) -> dict[str, Any]:
    common = {"mask_token_id": MASK, "stop_at_eos": False, "order": "logic"}
    return vars(settled(family, VOCAB, **common | options))


def model_of(kind: type[RoleDenoiser] = RoleDenoiser, seed: int = 0, ends: float = 0.0) -> RoleDenoiser:
    bias = np.zeros(VOCAB, np.float32)
    bias[MASK], bias[EOS] = -60, ends
    return kind(VOCAB, seed=seed, bias=bias)


def accepted(events: list[Event]) -> list[list[int]]:
    return [np.flatnonzero(event.accepted).tolist() for event in events if isinstance(event, Draft)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, RoleDenoiser, dict[str, Any]]:
    family, blocks, length = draw(st.sampled_from(FAMILIES)), draw(st.integers(1, 3)), draw(st.integers(1, 9))
    options: dict[str, Any] = {
        "max_new_tokens": blocks * length,
        "block_length": length,
        "steps": blocks * draw(st.integers(1, length)),
    }
    if family == "llada":
        options |= {
            "cfg_scale": draw(st.sampled_from([0.0, 0.0, 1.5])),
            "confidence_eos_eot_inf": draw(st.booleans()),
            "eos_token_ids": [EOS],
            "logits_budget_bytes": 4 * VOCAB * draw(st.integers(1, 3)),
        }
    kind = draw(st.sampled_from([RoleDenoiser, ProjectingRoles]))
    model = model_of(kind, draw(st.integers(0, 999)), draw(st.sampled_from([0.0, 4.0])))
    return family, model, options_of(family, **options)


# derandomize: scores in float32 and float64 may rank a near-tie differently, once in millions of comparisons.
@given(cases())
@settings(max_examples=80, derandomize=True)
def test_the_order_is_that_of_a_plain_loop(case: tuple[str, RoleDenoiser, dict[str, Any]]) -> None:
    family, model, options = case
    events = run(family, model, PROMPT, options)
    *steps, answer = unmasked(model, PROMPT, options, shift=family == "dream")
    assert accepted(events) == steps and committed(events) == answer


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("saved", [2, 5])
def test_a_saved_sampler_goes_on_by_roles(family: str, saved: int) -> None:
    options = options_of(family, max_new_tokens=8, block_length=4, temperature=0.5)
    whole = run(family, model_of(), PROMPT, options, seed=7)
    assert committed(saved_run(family, model_of(), PROMPT, options, 7, saved)) == committed(whole)


class Fixed(RoleDenoiser):
    """The likeliest roles of the answer's positions, whatever the canvas; of every other row, and of those
    that are unmasked, what would go first. Dream's row j is about position j + 1.
    """

    wanted: tuple[int, ...] = ()
    ahead = 0

    def roles(self, ids: Ids) -> Floats:  # type: ignore[override]
        scores = np.zeros((len(ids), len(ROLES)), np.float32)
        scores[:, PREMISE] = 5
        for place, role in enumerate(self.wanted, len(PROMPT)):
            if ids[place] == MASK:
                scores[place - self.ahead] = 0
                scores[place - self.ahead, role] = 1 + place % 3
        return scores


def fixed(family: str, *wanted: int) -> Fixed:
    model = Fixed(VOCAB, seed=3)
    model.bias[MASK] = -60
    model.wanted, model.ahead = wanted, int(family == "dream")
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_premises_come_first_and_what_says_nothing_last(family: str) -> None:
    model = fixed(family, CONCLUSION, FILLER, DERIVED, PREMISE, CONNECTIVE)
    events = run(family, model, PROMPT, options_of(family, max_new_tokens=5))
    if family == "llada":
        assert accepted(events) == [[3], [4], [2], [0], [1]]
    else:  # its schedule takes several at once in the end
        order = [place for step in accepted(events) for place in step]
        assert order[0] == 3 and order.index(4) < order.index(2) and order[-1] in (0, 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_premise_of_a_later_block_waits_for_its_block(family: str) -> None:
    model = fixed(family, FILLER, CONCLUSION, FILLER, PREMISE, PREMISE, PREMISE)
    events = run(family, model, PROMPT, options_of(family, max_new_tokens=6, block_length=3))
    order = [place for step in accepted(events) for place in step]
    assert order[0] == 1 and set(order[:3]) == {0, 1, 2}


def test_the_surest_of_a_role_goes_first() -> None:
    model = fixed("llada", *[DERIVED] * 6)
    plain = options_of("llada", max_new_tokens=6, order="confidence")
    by_roles = options_of("llada", max_new_tokens=6)
    assert accepted(run("llada", model, PROMPT, by_roles)) == accepted(run("llada", model, PROMPT, plain))


def test_roles_are_asked_of_open_positions_alone_and_by_this_order_alone() -> None:
    model = model_of()
    run("llada", model, PROMPT, options_of("llada", max_new_tokens=6, block_length=3))
    for ids, request, _ in model.calls:
        assert request.roles and request.rows is not None
        assert set(request.rows) <= set(np.flatnonzero(ids == MASK))
    plain = model_of()
    run("llada", plain, PROMPT, options_of("llada", max_new_tokens=6, order="confidence"))
    assert not any(request.roles for _, request, _ in plain.calls)


def test_equal_scores_are_the_earlier_role() -> None:
    class Equal(Fixed):
        def roles(self, ids: Ids) -> Floats:  # type: ignore[override]
            scores = super().roles(ids)
            scores[len(PROMPT) + 2, CONNECTIVE:] = 9
            return scores

    model = Equal(VOCAB, seed=3)
    model.bias[MASK] = -60
    model.wanted = (DERIVED, DERIVED, FILLER, FILLER)
    assert accepted(run("llada", model, PROMPT, options_of("llada", max_new_tokens=4)))[0] == [2]


def test_early_commit_settles_what_is_sure_whatever_its_role() -> None:
    options = options_of("llada", max_new_tokens=6, early_commit=0.0)
    assert finish(run("llada", model_of(), PROMPT, options)).stats.forwards == 1


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_without_a_role_head_is_refused_in_one_line(family: str) -> None:
    words = (
        "^order logic needs a role head, which this bundle does not have; train one .*, "
        "or use order confidence$"
    )
    with pytest.raises(InvalidOption, match=words):
        run(family, FakeDenoiser(VOCAB), PROMPT, options_of(family))
    section = {"name": family, "config": {"mask_token_id": MASK}}
    with pytest.raises(InvalidOption, match=words):
        settle(SamplerModel(section, VOCAB, 4), options={"order": "logic"})


@pytest.mark.parametrize(
    ("family", "options", "words"),
    [
        ("llada", {"threshold": 0.9}, "order logic commits as many positions as the schedule says"),
        ("dream", {"persistence": 2}, "order logic commits as many positions as the schedule says"),
        ("dream", {"alg": "origin"}, "alg origin unmasks at random, order logic by roles"),
        ("llada", {"order": "logical"}, "order is 'logical'; use one of: confidence, logic"),
        ("dream", {"order": None}, None),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    family: str, options: dict[str, Any], words: str | None
) -> None:
    if words is None:
        assert options_of(family, **options)["order"] == "confidence"
        return
    with pytest.raises(InvalidOption, match=words):
        options_of(family, **options)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_no_numbers_are_refused(bad: float) -> None:
    class Broken(RoleDenoiser):
        def denoise(self, ids: Ids, request: Any, soft: Floats | None = None) -> HeadOutput:
            found: HeadOutput = super().denoise(ids, request, soft)
            assert found.roles is not None
            found.roles[-1, 2] = bad
            return found

    with pytest.raises(InvalidOption, match=r"ek_head_output\.roles holds"):
        run("llada", Broken(VOCAB), PROMPT, options_of("llada", max_new_tokens=4))


def test_roles_differ_from_canvas_to_canvas() -> None:
    """As the cases above need them to."""
    one, other = (random_roles(np.array(ids)).argmax(1).tolist() for ids in ([*range(30)], [*range(1, 31)]))
    assert one != other and set(one) == set(range(5))
