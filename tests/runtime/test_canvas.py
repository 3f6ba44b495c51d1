"""DiffusionGemma's canvas where it is given, and its ways to spend fewer steps, against a plain loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.canvas_reference import Canvas
from support.fake_denoiser import FakeDenoiser
from support.sampler_runs import committed, finish, plain, run, saved_run, settled

from edgekit.runtime.sampling import Committed, Draft, Event, InvalidOption
from edgekit.runtime.sampling.types import Floats, Ids

FAMILY = "diffusion_gemma"
VOCAB, CANVAS, PROMPT = 30, 10, [1, 2, 3]


class Settling(FakeDenoiser):
    """Scores that favour a target: places differ in how much, each right token that is shown helps all."""

    def __init__(self, seed: int) -> None:
        super().__init__(VOCAB, seed=seed, scale=0.4)
        rng = np.random.default_rng([seed, 1])
        self.target, self.ease = rng.integers(0, VOCAB, CANVAS), rng.uniform(0, 3, CANVAS).astype(np.float32)

    def scores(self, ids: Ids | Any, soft: Floats | None = None) -> Floats:
        # The conditioning would bring the rounding of this model into the comparison.
        found = super().scores(ids)
        right = np.float32((np.asarray(ids) == self.target).mean())
        found[np.arange(CANVAS), self.target] += self.ease + 6 * right
        return found


def options_of(**options: Any) -> dict[str, Any]:
    common = {"max_new_tokens": CANVAS, "canvas_length": CANVAS, "steps": 16, "confidence_threshold": 1e-6}
    return vars(settled(FAMILY, VOCAB, **common | options))


def given(seed: int, count: int) -> dict[str, Any]:
    rng = np.random.default_rng([seed, 5])
    places = sorted(int(i) for i in rng.permutation(CANVAS)[:count])
    canvas = np.where(rng.random(CANVAS) < 0.5, -1, rng.integers(0, VOCAB, CANVAS))
    canvas[places] = rng.integers(0, VOCAB, count)
    return {"canvas": [int(token) for token in canvas], "fixed": places}


WAYS: list[dict[str, Any]] = [
    {},
    {"persistence": 1, "persistent_entropy": 2.0},
    {"persistence": 2, "persistent_entropy": 1.0},
    {"verify_bound": 8.0},
    {"verify_bound": 20.0},
    {"entropy_bound": 2.0, "verify_bound": 12.0, "persistence": 1, "persistent_entropy": 1.0},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("fixed", [0, 1, 4, CANVAS])
@pytest.mark.parametrize("seed", range(4))
def test_a_canvas_is_that_of_a_plain_loop(way: dict[str, Any], fixed: int, seed: int) -> None:
    options = options_of(**way, **(given(seed, fixed) if fixed else {}))
    model, ours = Settling(seed), Settling(seed)
    model.prefill(np.array(PROMPT))
    reference = Canvas(model, options, seed)
    expected = reference.run()
    events = run(FAMILY, ours, PROMPT, options, seed)
    assert [ids.tolist() for ids, _, _ in ours.calls] == reference.shown
    assert committed(events) == expected


def test_a_verified_canvas_takes_fewer_steps_and_a_refused_one_goes_on() -> None:
    steps, plain_steps, refused = 0, 0, 0
    for seed in range(8):
        done = finish(run(FAMILY, Settling(seed), PROMPT, options_of(), seed))
        plain_steps += done.stats.denoising_steps
        options = options_of(verify_bound=20.0)
        model = Settling(seed)
        model.prefill(np.array(PROMPT))
        reference = Canvas(model, options, seed)
        reference.run()
        refused += len(reference.verified) - 1
        verified = finish(run(FAMILY, Settling(seed), PROMPT, options, seed))
        steps += verified.stats.denoising_steps
    assert steps < plain_steps and refused > 0


def test_only_the_first_canvas_is_given() -> None:
    options = options_of(max_new_tokens=2 * CANVAS, **given(1, 4))
    events = run(FAMILY, Settling(1), PROMPT, options, 1)
    first, second = (event.ids for event in events if isinstance(event, Committed))
    places = np.array(options["fixed"])
    assert (first[places] == np.array(options["canvas"])[places]).all()
    assert second[places].tolist() != first[places].tolist()


@pytest.mark.parametrize("pad", [None, 0])
def test_an_end_before_a_fixed_token_ends_nothing(pad: int | None) -> None:
    def events_of(fixed: list[int], canvas: list[int]) -> list[Event]:
        model = Settling(1)
        model.target[:] = 7
        options = options_of(eos_token_ids=[7], pad_token_id=pad, canvas=canvas, fixed=fixed)
        return run(FAMILY, model, PROMPT, options, 1)

    open_ = [-1] * CANVAS
    canvas = [*open_[:4], 9, *open_[5:]]
    found = committed(events_of([4], canvas))
    assert found[4:6] == [9, 7] and found[6:] == [7 if pad is None else 0] * 4
    assert found[:4] == [7] * 4
    if pad is None:  # what follows the end token could be text
        return
    ended = [*open_[:4], 9, *open_[5:7], 7, 0, 0]
    events = events_of([4, 7, 8, 9], ended)
    assert committed(events)[4:6] == [9, 7]
    text = next(event.text for event in events if isinstance(event, Committed))
    assert text is not None and text[:4].tolist() == [7] * 4 and text[4:].tolist() == [9, 7]


@pytest.mark.parametrize("way", WAYS[1:], ids=str)
def test_a_state_that_is_saved_anywhere_goes_on_to_the_same_events(way: dict[str, Any]) -> None:
    options = options_of(max_new_tokens=2 * CANVAS, **way, **given(2, 3))
    whole = [plain(event) for event in run(FAMILY, Settling(2), PROMPT, options, 6)]
    for saved in range(1, len(whole)):
        denoiser = Settling(2)
        assert [plain(e) for e in saved_run(FAMILY, denoiser, PROMPT, options, 6, saved)][:-1] == whole[:-1]


def test_fixed_places_are_shown_in_every_draft() -> None:
    options = options_of(**given(3, 4))
    places = np.array(options["fixed"])
    wanted = np.array(options["canvas"])[places]
    model = Settling(3)
    for event in run(FAMILY, model, PROMPT, options, 3):
        if isinstance(event, Draft):
            assert (event.ids[places] == wanted).all() and event.accepted[places].all()
    assert all((ids[places] == wanted).all() for ids, _, _ in model.calls)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"canvas": [1, 2]}, "canvas has 2 tokens; give the 10 of a whole canvas, -1 where one is open"),
        ({"fixed": [0]}, "fixed names place 0, for which canvas has no token; give it one"),
        ({"canvas": [-1] * CANVAS, "fixed": [3]}, "fixed names place 3, for which canvas has no token"),
        ({"canvas": [1] * CANVAS, "fixed": [CANVAS]}, "fixed names place 10"),
        ({"canvas": [VOCAB] * CANVAS}, "canvas 30 is outside the model's vocabulary of 30 tokens"),
        ({"canvas": [-2] * CANVAS}, "canvas is -2; use an integer of at least -1"),
        ({"persistence": 0}, "persistence is 0"),
        ({"verify_bound": -1}, "verify_bound is -1; use a number of at least 0"),
    ],
)
def test_what_is_no_canvas_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        options_of(**options)
    assert message in str(caught.value) and "\n" not in str(caught.value)
