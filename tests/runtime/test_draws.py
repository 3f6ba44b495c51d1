"""`SamplerOptions.draws` is what happens: seeds give different steps where it says so, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from support.fake_denoiser import FakeDenoiser
from support.hash_model import HashModel, HashSequence
from support.sampler_runs import plain, run, section

from edgekit.runtime.sampling import CoreSampler, SamplerModel, drive, settle

MASKED = {"mask_token_id": 12, "max_new_tokens": 8}
BLOCK = MASKED | {"block_length": 4}
CASES: list[tuple[str, dict[str, Any], bool]] = [
    ("diffusion_gemma", {"canvas_length": 8, "max_new_tokens": 8, "steps": 3}, True),
    ("llada", MASKED, False),
    ("llada", MASKED | {"threshold": 0.3}, False),
    ("llada", MASKED | {"temperature": 0.7}, True),
    ("llada", MASKED | {"remasking": "random"}, True),
    ("dream", MASKED, False),
    ("dream", MASKED | {"alg": "maskgit_plus", "alg_temp": 0.0}, False),
    ("dream", MASKED | {"temperature": 0.7}, True),
    ("dream", MASKED | {"alg": "origin"}, True),
    ("dream", MASKED | {"alg_temp": 0.7}, True),
    ("block", BLOCK, False),
    ("block", BLOCK | {"remasking": "sequential"}, False),
    ("block", BLOCK | {"temperature": 0.7}, True),
    ("block", BLOCK | {"mode": "speculative"}, False),
    ("block", BLOCK | {"mode": "autoregressive", "temperature": 0.7}, True),
]


def events(family: str, options: dict[str, Any], seed: int) -> list[tuple[Any, ...]]:
    if family != "block":
        return [plain(each) for each in run(family, FakeDenoiser(13), [3, 5, 1], options, seed)]
    sampler = CoreSampler(SamplerModel(section("block"), 13, 0), [3, 5, 1], seed=seed, options=options)
    return [plain(each) for each in drive(sampler, HashSequence(HashModel()))]


@pytest.mark.parametrize(("family", "options", "draws"), CASES)
def test_seeds_differ_where_something_is_drawn(family: str, options: dict[str, Any], draws: bool) -> None:
    model = SamplerModel(section(family), 13, 4)
    assert settle(model, options=options).draws is draws
    first, *others = (events(family, options, seed) for seed in range(4))
    assert any(other != first for other in others) is draws
