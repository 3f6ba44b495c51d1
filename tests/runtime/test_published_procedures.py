"""Answers of random models, token for token those of the published procedures over transformers' models of
the same weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from support import published_procedures
from support.bundles import make_bundle
from support.checkpoints import load_oracle
from support.published_procedures import Oracle, answer

from edgekit.export.quantize import Scheme
from edgekit.runtime.generation import Generator, Settings
from edgekit.runtime.sampling import Committed

MASK = 4
#: Of the weights. These models do not predict the mask itself, of which the scripts think differently.
SEEDS = {"coda": 1}
#: New tokens: whole blocks where a procedure that ends within one makes the last one shorter.
MOST = {"a2d_qwen2": 16, "a2d_qwen3": 16}


@dataclass(frozen=True)
class Model:
    """A random checkpoint as a bundle, and as transformers' model of the same function."""

    family: str
    generator: Generator
    oracle: torch.nn.Module

    @property
    def most(self) -> int:
        return MOST.get(self.family, 19)

    @property
    def ends(self) -> tuple[int, ...]:
        return (2, 0) if self.family.startswith("sdar") else (2,)

    def tokens(self, prompt: list[int], **options: Any) -> list[int]:
        """The core's answer."""
        settings = Settings(max_new_tokens=self.most, options=options)
        events = self.generator.generate(prompt, settings)
        return [int(token) for e in events if isinstance(e, Committed) for token in e.ids]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small cost less than waking threads for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(
    scope="module",
    params=["sdar", "sdar_moe", "fast_dllm", "a2d_qwen2", "a2d_qwen3", "coda", "nemotron_labs_diffusion"],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder = tmp_path_factory.mktemp(request.param)
    bundle = make_bundle(
        folder, request.param, Scheme("bf16"), SEEDS.get(request.param, 0), "native",
        dtype="bfloat16", num_hidden_layers=2,
    )  # fmt: skip
    with Generator(bundle) as generator:
        yield Model(request.param, generator, load_oracle(folder / "checkpoint"))


def prompt(seed: int, length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(5, 384, length)]


#: Prompts shorter than a block, of whole blocks, and neither.
LENGTHS = (3, 8, 13)
CASES: dict[str, list[dict[str, Any]]] = {
    "sdar": [{}, {"threshold": 0.02}, {"steps": 2, "threshold": None}, {"remasking": "sequential"}],
    "sdar_moe": [{}, {"threshold": 0.02}],
    "fast_dllm": [{"threshold": 1.0}, {"threshold": 0.02}, {"small_block_length": 4, "threshold": 0.02}],
    "a2d_qwen2": [{"block_length": 8, "steps": 16}, {"block_length": 16, "steps": 5}],
    "a2d_qwen3": [{}, {"steps": 4}],
    "coda": [{"steps": 16}, {"steps": 6}],
    "nemotron_labs_diffusion": [
        {},
        {"threshold": 0.02},
        {"steps": 3, "threshold": None},
        {"causal_start": False, "threshold": 0.02},
        {"mode": "autoregressive"},
        {"mode": "speculative"},
    ],
}


def expected(model: Model, ids: list[int], own: dict[str, Any], ends: Collection[int]) -> list[int]:
    oracle, family, most, steps = Oracle(model.oracle), model.family, model.most, own.get("steps")
    if family in ("sdar", "sdar_moe"):
        made = published_procedures.sdar(
            oracle, ids, most, mask=MASK, block=4, steps=steps or 4, threshold=own.get("threshold", 0.85),
            order=own.get("remasking", "low_confidence"), ends=ends,
        )  # fmt: skip
    elif family == "fast_dllm":
        small = own.get("small_block_length", 8)
        made = published_procedures.fast_dllm(
            oracle, ids, most, mask=MASK, block=8, small=small, threshold=own["threshold"], ends=ends
        )
    elif family == "a2d_qwen3":
        made = published_procedures.bd3lm(oracle, ids, most, mask=MASK, block=8, steps=steps or 8, ends=ends)
    elif family == "a2d_qwen2":
        block = own["block_length"]
        made = published_procedures.mdlm(
            oracle, ids, most, mask=MASK, block=block, steps=own["steps"] * block // most
        )
    elif family == "coda":
        made = published_procedures.coda(oracle, ids, most, mask=MASK, steps=own["steps"])
    elif "mode" in own:
        made = published_procedures.autoregressive(oracle, ids, most, ends)
    else:
        made = published_procedures.nemotron(
            oracle, ids, most, mask=MASK, block=8, steps=steps or 8, threshold=own.get("threshold", 0.9),
            causal_start=own.get("causal_start", True), ends=ends,
        )  # fmt: skip
    return answer(made, most, ends)


def test_answers_are_those_of_the_published_procedure(model: Model) -> None:
    made = set()
    for own in CASES[model.family]:
        for length in LENGTHS:
            ids = prompt(length, length)
            found = model.tokens(ids, **own)
            assert found == expected(model, ids, own, model.ends), (own, length)
        made.add(tuple(found))
    assert len(made) > 1, "the settings make a difference"


def test_prompts_are_encoded_in_whole_blocks(model: Model) -> None:
    """Sessions encode 256 positions at a time, counted from where the blocks are."""
    ids, own = prompt(299, 299), CASES[model.family][0]
    assert model.tokens(ids, **own) == expected(model, ids, own, model.ends)


def test_answers_end_where_the_procedure_ends(model: Model) -> None:
    """At an end token in the middle of a block, once everything before it is committed."""
    ids, own = prompt(7, 7), CASES[model.family][-1]
    for at in (0, 5, 10):
        end = model.tokens(ids, **own)[at]
        found = model.tokens(ids, eos_token_id=end, **own)
        assert found == expected(model, ids, own, (end,)) and found[-1] == end, at
