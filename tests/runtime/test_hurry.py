"""Generations that are told to end: within so many passes, or before a deadline."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from support.fake_denoiser import FakeDenoiser
from support.sampler_runs import committed, core_model, plain, settled

import edgekit
from edgekit.runtime import generation
from edgekit.runtime.generation import Generator, Settings
from edgekit.runtime.sampling import CoreSampler, Done, Draft, Event, InvalidOption, drive

MASK, VOCAB, PROMPT = 39, 40, [3, 1, 4]
OPTIONS: dict[str, dict[str, Any]] = {
    "llada": {"mask_token_id": MASK, "max_new_tokens": 24, "block_length": 6},
    "llada with guidance": {"mask_token_id": MASK, "max_new_tokens": 24, "block_length": 6, "cfg_scale": 0.5},
    "llada by a rule": {"mask_token_id": MASK, "max_new_tokens": 24, "block_length": 6, "threshold": 0.4},
    "dream": {"mask_token_id": MASK, "max_new_tokens": 20, "steps": 16},
    "dream origin": {"mask_token_id": MASK, "max_new_tokens": 20, "steps": 16, "alg": "origin"},
    "diffusion_gemma": {"max_new_tokens": 24, "canvas_length": 8, "steps": 7},
}


def family_of(case: str) -> str:
    return case.split()[0]


def model_of(case: str) -> FakeDenoiser:
    bias = np.zeros(VOCAB, np.float32)
    bias[MASK] = -60
    return FakeDenoiser(VOCAB, bias=bias)


def hurried(case: str, after: int, passes: int, seed: int = 4, save: bool = False) -> tuple[list[Event], int]:
    """All events of a generation that is told to hurry behind event number `after`; forwards at that time."""
    denoiser, family = model_of(case), family_of(case)
    options = vars(settled(family, VOCAB, **OPTIONS[case]))
    model = core_model(family, denoiser)
    sampler = CoreSampler(model, PROMPT, seed=seed, options=options)
    events: list[Event] = []
    before = 0
    if after == 0:
        sampler.hurry(passes)
    while True:
        for event in drive(sampler, denoiser):
            events.append(event)
            if len(events) == after:
                before = sampler.stats.forwards
                sampler.hurry(passes)
                if save:
                    sampler = CoreSampler.load(model, sampler.save())
                    break
        else:
            return events, before


@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("passes", [1, 2, 5])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_it_ends_within_the_passes_with_a_whole_answer(case: str, passes: int, after: int) -> None:
    events, before = hurried(case, after, passes)
    done = events[-1]
    assert isinstance(done, Done)
    least = 2 if "guidance" in case else 1  # a step takes two
    assert done.stats.forwards <= before + max(passes, least)
    answer = committed(events)
    assert MASK not in answer
    if family_of(case) != "diffusion_gemma":
        assert len(answer) == OPTIONS[case]["max_new_tokens"]


@pytest.mark.parametrize("case", OPTIONS)
def test_it_goes_its_way_until_the_last_pass(case: str) -> None:
    whole, _ = hurried(case, 0, 1 << 22)
    drafts = [plain(event) for event in whole if isinstance(event, Draft)]
    events, _ = hurried(case, 0, 3)
    own = [plain(event) for event in events if isinstance(event, Draft)]
    assert 0 < len(own) <= 3
    assert own[:-1] == drafts[: len(own) - 1]
    # As many passes as it takes anyway change nothing.
    done = whole[-1]
    assert isinstance(done, Done)
    enough, _ = hurried(case, 0, done.stats.forwards + 2)
    assert [plain(event) for event in enough] == [plain(event) for event in whole]


@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("passes", [1, 3])
def test_a_saved_state_hurries_on(case: str, passes: int) -> None:
    for after in (1, 2, 4):
        expected = committed(hurried(case, after, passes)[0])
        assert committed(hurried(case, after, passes, save=True)[0]) == expected


def test_what_is_no_number_of_passes_is_refused() -> None:
    sampler = CoreSampler(core_model("llada", model_of("llada")), PROMPT, options=OPTIONS["llada"])
    for passes in (0, -1, 1.5, True, 1 << 23):
        with pytest.raises(InvalidOption, match="passes is"):
            sampler.hurry(passes)  # type: ignore[arg-type]


# Deadlines.


class Clock:
    """A clock that moves by a second whenever it is read, in place of `time.monotonic`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now

    perf_counter = staticmethod(time.perf_counter)


@pytest.mark.parametrize("draft_steps", [1, 2])
def test_a_deadline_leaves_the_passes_that_there_is_time_for(
    shipped_bundle: Any, monkeypatch: pytest.MonkeyPatch, draft_steps: int
) -> None:
    """However many steps they have."""
    with Generator(shipped_bundle("tiny-llada", "native")) as generator:
        prompt = generator.encode("Copy this: blue 5 green")

        def forwards(deadline: float | None) -> int:
            monkeypatch.setattr(generation, "time", Clock())
            own = Settings(deadline_seconds=deadline, options={"draft_steps": draft_steps})
            events = list(generator.generate(prompt, own))
            assert isinstance(events[-1], Done)
            return events[-1].stats.forwards

        whole = forwards(None)
        # It begins at 1, the session is open at 2, and pass n is over at 2 + n; the first is always taken.
        assert [forwards(seconds) for seconds in (0.5, 4, 4.9, 5, 9)] == [2, 3, 3, 4, 8]
        assert forwards(1000.0) == whole > 10
        with pytest.raises(InvalidOption, match="deadline_seconds does not go with several prompts"):
            list(generator.generate_many([prompt], Settings(deadline_seconds=1.0)))


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), True, "soon"])
def test_what_is_no_deadline_is_refused(shipped_bundle: Any, seconds: Any) -> None:
    with edgekit.load(shipped_bundle("tiny-llada", "native")) as model:
        with pytest.raises(
            edgekit.InvalidOption, match="deadline_seconds is .*; use a number of seconds above 0"
        ):
            model.generate("Copy this: red 7", deadline_seconds=seconds)
        answer = model.generate("Copy this: red 7", deadline_seconds=1e-9)
        assert answer.statistics.forwards == 2
