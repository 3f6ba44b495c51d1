"""Samplers that draw from another seed from a place on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.fake_denoiser import FakeDenoiser
from support.hash_model import HashModel, HashSequence
from support.sampler_runs import core_model, plain, settled

from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime.sampling import (
    CoreSampler,
    Denoise,
    Draft,
    InvalidOption,
    Pass,
    SamplerModel,
    Tell,
    drive,
)

MASK, VOCAB, PROMPT = 39, 40, [3, 1, 4]
OPTIONS: dict[str, dict[str, Any]] = {
    "llada": {"mask_token_id": MASK, "max_new_tokens": 24, "block_length": 6, "temperature": 0.8},
    "llada with guidance": {
        "mask_token_id": MASK, "max_new_tokens": 12, "block_length": 6, "cfg_scale": 0.5, "temperature": 0.8,
    },
    "dream": {"mask_token_id": MASK, "max_new_tokens": 20, "steps": 16, "temperature": 0.8},
    "dream origin": {"mask_token_id": MASK, "max_new_tokens": 20, "steps": 16, "alg": "origin"},
    "diffusion_gemma": {"max_new_tokens": 24, "canvas_length": 8, "steps": 7},
    "block": {"mask_token_id": 12, "eos_token_id": [11], "block_length": 4, "temperature": 0.8},
}  # fmt: skip


def begun(case: str, seed: int) -> tuple[CoreSampler, Any]:
    """A sampler, and the model that it runs over."""
    if case == "block":
        section = {"name": "block", "config": OPTIONS[case]}
        model = HashModel(seed=5)
        return CoreSampler(
            SamplerModel(section, model.vocabulary, 0, bundle="b"), PROMPT, seed=seed, max_new_tokens=12
        ), HashSequence(model)
    bias = np.zeros(VOCAB, np.float32)
    bias[MASK] = -60
    denoiser, family = FakeDenoiser(VOCAB, bias=bias), case.split()[0]
    options = vars(settled(family, VOCAB, **OPTIONS[case]))
    return CoreSampler(core_model(family, denoiser), PROMPT, seed=seed, options=options), denoiser


def run(case: str, ways: dict[int, int], seed: int = 4, late: bool = False) -> list[Any]:
    """All events of a generation that is reseeded behind so many drafts; `late`: where it asks for the next
    pass already.
    """
    sampler, denoiser = begun(case, seed)
    events: list[Any] = []
    drafts = 0
    while True:
        for event in drive(sampler, denoiser):
            events.append(plain(event))
            if isinstance(event, Draft):
                drafts += 1
                if drafts in ways:
                    break
        else:
            return events
        ask = sampler.next() if late else None
        if isinstance(ask, Tell):  # nothing is drawn for it
            events.append(plain(ask.event))
        elif ask is not None:
            assert isinstance(ask, Denoise | Pass)
        sampler.reseed(ways.pop(drafts))


@pytest.mark.parametrize("case", OPTIONS)
def test_its_own_seed_changes_nothing_and_another_one_what_follows(case: str) -> None:
    whole = run(case, {})
    assert run(case, {2: 4, 4: 4}) == whole
    other = run(case, {3: 9})
    third = [i for i, event in enumerate(whole) if event[0] == "draft"][2]
    assert other[: third + 1] == whole[: third + 1] and other != whole
    assert run(case, {3: 9}) == other
    assert run(case, {3: 10}) != other


@pytest.mark.parametrize("case", OPTIONS)
def test_a_step_whose_pass_is_asked_for_is_begun_again(case: str) -> None:
    assert run(case, {3: 9}, late=True) == run(case, {3: 9})


@pytest.mark.parametrize("case", OPTIONS)
def test_a_reseeded_state_is_saved_and_loaded(case: str) -> None:
    for late in (False, True):
        sampler, denoiser = begun(case, 4)
        running = drive(sampler, denoiser)
        for event in running:
            if isinstance(event, Draft) and event.step == 2:
                break
        running.close()
        if late:
            sampler.next()
        sampler.reseed(9)
        _, fresh = begun(case, 4)
        section = {"name": case.split()[0], "config": OPTIONS[case] if case == "block" else {}}
        model = SamplerModel(section, fresh.vocab_size, fresh.hidden_size, bundle="b")
        if case != "block":
            model = core_model(case.split()[0], fresh)
        loaded = CoreSampler.load(model, sampler.save())
        if case == "block":
            with pytest.raises(InvalidRequest, match="reseed it behind that step"):
                loaded.reseed(1)
        assert [plain(e) for e in drive(loaded, fresh)] == [plain(e) for e in drive(sampler, denoiser)]


def test_what_is_no_seed_is_refused() -> None:
    sampler, _ = begun("llada", 4)
    for seed in (-1, 1 << 64, 1.5, True):
        with pytest.raises(InvalidOption, match="seed is"):
            sampler.reseed(seed)  # type: ignore[arg-type]
