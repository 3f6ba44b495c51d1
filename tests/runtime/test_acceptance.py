"""Acceptance rules of the masked families against a plain loop; canvases that are partly given."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.acceptance_reference import Loop, entropy_bounded
from support.fake_denoiser import FakeDenoiser, ProjectingDenoiser, head
from support.native_floats import pointer
from support.native_testing import library
from support.sampler_runs import committed, finish, run, saved_run, settled

from edgekit.runtime.sampling import Draft, Event, HeadOutput, HeadRequest, InvalidOption
from edgekit.runtime.sampling.types import Floats, Ids

VOCAB = 40
MASK, EOS = 39, 38
PROMPT = [3, 1, 4, 1, 5]
FAMILIES = ("llada", "dream")
RULES: list[dict[str, Any]] = [
    {"threshold": 0.5},
    {"factor": 0.8},
    {"entropy_bound": 1.5},
    {"margin": 0.3},
    {"persistence": 1, "persistent_threshold": 0.2},
    {"persistence": 2, "persistent_threshold": 0.1, "stability": 0.2},
    {"threshold": 0.7, "persistence": 1, "persistent_threshold": 0.3},
    {"entropy_bound": 0.2, "persistence": 1, "persistent_threshold": 0.3, "early_commit": 0.05},
    {"threshold": 0.9, "early_commit": 0.02},
]


class Ripening(FakeDenoiser):
    """Scores that favour a target, the more the less is open, so that best tokens last for some steps."""

    def __init__(self, seed: int, noise: float = 0.6, **more: Any) -> None:
        super().__init__(VOCAB, seed=seed, scale=noise, **more)
        self.bias[MASK] = -60
        self.target = np.random.default_rng([seed, 1]).integers(0, VOCAB - 2, 64)
        self.ease = np.random.default_rng([seed, 2]).uniform(0, 3, 64).astype(np.float32)

    def scores(self, ids: Ids | Any, soft: Floats | None = None) -> Floats:
        found = super().scores(ids, soft)
        share = np.float32((np.asarray(ids) != MASK).mean())
        rows = np.arange(len(found))
        found[rows, self.target[rows]] += self.ease[rows] + 4 * share
        return found


def options_of(family: str, **options: Any) -> dict[str, Any]:
    common: dict[str, Any] = {"mask_token_id": MASK, "stop_at_eos": False}
    if "canvas" not in options:
        common |= {"max_new_tokens": 12} | ({"block_length": 6} if family == "llada" else {})
    return vars(settled(family, VOCAB, **common | options))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_a_rule_commits_what_a_plain_loop_commits(family: str, rule: dict[str, Any], seed: int) -> None:
    options = options_of(family, **rule)
    plain = Loop(Ripening(seed), options, shift=family == "dream")
    expected = plain.run(PROMPT)
    events = run(family, Ripening(seed), PROMPT, options)
    assert committed(events) == expected
    assert finish(events).stats.forwards == plain.forwards <= 12
    assert all(event.accepted.any() for event in events if isinstance(event, Draft))


@pytest.mark.parametrize("alg", ["entropy", "maskgit_plus", "topk_margin"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_dream_takes_rules_by_any_order_and_through_filters(rule: dict[str, Any], alg: str) -> None:
    """By the statistics of the head, and by candidates of which a filter leaves all."""
    options = options_of("dream", alg=alg, **rule)
    expected = Loop(Ripening(7), options, shift=True).run(PROMPT)
    assert committed(run("dream", Ripening(7), PROMPT, options)) == expected
    assert committed(run("dream", Ripening(7), PROMPT, options | {"top_k": VOCAB})) == expected


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("budget", [4 * VOCAB, 64 << 20])
def test_full_scores_give_the_rule_the_same_as_statistics(rule: dict[str, Any], budget: int) -> None:
    options = options_of("llada", eos_token_ids=[EOS], **rule)
    statistics = committed(run("llada", Ripening(3), PROMPT, options))
    # End tokens that are never predicted are forbidden: the scores come in full, and are otherwise the same.
    full = options | {"logits_eos_inf": True, "logits_budget_bytes": budget}
    denoiser = type("Full", (Ripening, ProjectingDenoiser), {})(3)
    denoiser.bias[EOS] = -60
    assert committed(run("llada", denoiser, PROMPT, full)) == statistics


@given(
    st.lists(st.sampled_from([0.0, 0.125, 0.5, 0.75, 1.0, 2.0, 3.0]), min_size=1, max_size=9),
    st.sampled_from([0.0, 0.125, 0.5, 1.0, 2.5]),
)
@settings(max_examples=300)
def test_entropy_bound_is_the_published_rule(entropies: list[float], bound: float) -> None:
    core = library()
    core.ekt_count_by_entropy.restype = ctypes.c_int64
    values = np.array(entropies)
    found = core.ekt_count_by_entropy(pointer(values), ctypes.c_int64(len(values)), ctypes.c_double(bound))
    assert found == entropy_bounded(entropies, bound)


@pytest.mark.parametrize("family", FAMILIES)
def test_thresholds_nobody_reaches_commit_one_a_step(family: str) -> None:
    for rule in ({"threshold": 1.0}, {"margin": 1.0}, {"entropy_bound": 0.0}, {"persistence": 40}):
        events = run(family, Ripening(1, noise=1.0), PROMPT, options_of(family, **rule))
        assert finish(events).stats.forwards == 12


@pytest.mark.parametrize("family", FAMILIES)
def test_early_commit_ends_the_answer_where_all_of_it_is_settled(family: str) -> None:
    options = options_of(family, early_commit=0.05, steps=12)
    events = run(family, Ripening(5), PROMPT, options)
    drafts = [event for event in events if isinstance(event, Draft)]
    assert 1 < len(drafts) < 12
    assert (drafts[-1].ids != MASK).all() and drafts[-1].accepted.sum() > 1
    assert all(draft.accepted.sum() == 1 for draft in drafts[:-1])
    assert committed(events) == drafts[-1].ids.tolist()
    assert finish(events).stats.forwards == len(drafts)
    never = run(family, Ripening(5), PROMPT, options | {"early_commit": 1.0})
    assert finish(never).stats.forwards > 10


class Recorder(Ripening):
    """Records the requests."""

    def denoise(self, ids: Ids, request: HeadRequest, soft: Floats | None = None) -> HeadOutput:
        self.requests = [*getattr(self, "requests", []), request]
        return head(self.scores(ids, soft), request)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_schedule_asks_for_nothing_that_only_rules_need(family: str) -> None:
    plain, ruled = Recorder(1), Recorder(1)
    run(family, plain, PROMPT, options_of(family))
    run(family, ruled, PROMPT, options_of(family, margin=0.5))
    assert all(request.top_k == 0 for request in plain.requests)
    assert all(request.top_k == 2 for request in ruled.requests)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rule", [*RULES, {"early_commit": 0.05}], ids=str)
def test_a_state_that_is_saved_anywhere_goes_on_to_the_same_tokens(family: str, rule: dict[str, Any]) -> None:
    canvas = [MASK, 5, MASK, MASK, 9, 9, MASK, MASK, MASK, MASK, 2, MASK]
    for given_canvas in ({}, {"canvas": canvas}):
        options = options_of(family, temperature=0.5, **rule, **given_canvas)
        whole = committed(run(family, Ripening(2), PROMPT, options, seed=3))
        count = len(run(family, Ripening(2), PROMPT, options, seed=3))
        for saved in range(1, count):
            assert committed(saved_run(family, Ripening(2), PROMPT, options, 3, saved)) == whole


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"threshold": 0.9, "factor": 1.0}, "threshold and factor are both set; use one of them"),
        ({"factor": 1.0, "margin": 0.1}, "factor and margin are both set; use one of them"),
        ({"entropy_bound": 1.0, "margin": 0.1}, "entropy_bound and margin are both set; use one of them"),
        ({"stability": 0.1}, "stability is set without persistence"),
        ({"margin": 1.5}, "margin is 1.5; use a number from 0 to 1"),
        ({"persistence": 0}, "persistence is 0; use an integer from 1 to"),
    ],
)
def test_rules_that_contradict_each_other_are_refused(
    family: str, rules: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        options_of(family, **rules)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("family", "more", "message"),
    [
        (
            "llada",
            {"remasking": "random"},
            "acceptance rules compare confidences; use remasking low_confidence",
        ),
        ("dream", {"alg": "origin"}, "alg origin unmasks at random"),
        ("dream", {"alg_temp": 0.5}, "alg_temp draws the positions"),
    ],
)
def test_orders_by_chance_go_with_no_rule(family: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        options_of(family, entropy_bound=0.5, **more)


# A canvas that is partly given.


def given_case(rng: np.random.Generator, length: int) -> list[int]:
    canvas = rng.integers(0, VOCAB - 2, length)
    canvas[rng.random(length) < 0.6] = MASK
    return [int(token) for token in canvas]


@pytest.mark.parametrize(
    ("family", "rule"), [("llada", {}), *((family, rule) for family in FAMILIES for rule in RULES)], ids=str
)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_given_stays_and_the_rest_is_that_of_a_plain_loop(
    family: str, rule: dict[str, Any], seed: int
) -> None:
    canvas = given_case(np.random.default_rng(seed), 9)
    options = options_of(family, canvas=canvas, **rule)
    assert options["max_new_tokens"] == 9
    # LLaDA's schedule of as many steps as tokens commits the most confident one in each.
    plain_options = options if rule else options | {"threshold": 1.0}
    plain = Loop(Ripening(seed), plain_options, shift=family == "dream")
    expected = plain.run(PROMPT, canvas)
    events = run(family, Ripening(seed), PROMPT, options)
    assert committed(events) == expected
    given_places = np.array(canvas) != MASK
    assert (np.array(committed(events))[given_places] == np.array(canvas)[given_places]).all()
    for event in events:
        if isinstance(event, Draft):
            assert not event.accepted[given_places].any()
            assert (event.ids[given_places] == np.array(canvas)[given_places]).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_canvas_without_an_open_place_is_the_answer(family: str) -> None:
    denoiser = Ripening(1)
    events = run(family, denoiser, PROMPT, {"mask_token_id": MASK, "canvas": [5, 6, 7]})
    assert committed(events) == [5, 6, 7] and not denoiser.calls


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_and_lengths_may_go_beyond_what_is_given(family: str) -> None:
    more = {"block_length": 4} if family == "llada" else {}
    options = options_of(family, max_new_tokens=8, canvas=[5, MASK, 7], threshold=0.5, **more)
    found = committed(run(family, Ripening(4), PROMPT, options))
    assert len(found) == 8 and found[0] == 5 and found[2] == 7 and MASK not in found
    with pytest.raises(InvalidOption, match="the canvas has 3 tokens, the answer 2"):
        options_of(family, max_new_tokens=2, canvas=[5, MASK, 7], **({"block_length": 2} if more else {}))
    with pytest.raises(InvalidOption, match="canvas 40 is outside the model's vocabulary of 40"):
        options_of(family, canvas=[40])


@pytest.mark.parametrize("family", FAMILIES)
def test_an_end_before_a_given_token_ends_nothing(family: str) -> None:
    def events_of(canvas: list[int]) -> list[Event]:
        denoiser = Ripening(1)
        denoiser.bias[EOS] = 40
        options = {"mask_token_id": MASK, "eos_token_ids": [EOS], "threshold": 0.5, "canvas": canvas}
        return run(family, denoiser, PROMPT, options)

    assert committed(events_of([MASK, MASK, 7, MASK, MASK])) == [EOS, EOS, 7, EOS]
    assert committed(events_of([MASK, 7, EOS, EOS, EOS])) == [EOS, 7, EOS]
    assert committed(events_of([EOS, MASK, EOS])) == [EOS]
