"""LLaDA's answers where every probability rounds to 1 in float32: those of the official script, whose softmax
is float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.fake_denoiser import FakeDenoiser
from support.head_join import HeadState
from support.sampler_runs import committed, run
from torch import Tensor

from edgekit.export.ops import head_statistics
from edgekit.runtime.engines.base import TilePart
from edgekit.runtime.sampling import PhiloxNoise
from edgekit.runtime.sampling.types import Floats, HeadOutput, HeadRequest, Ids

VOCAB, MASK, EOS = 40, 39, 38
PROMPT = [3, 1, 4, 1, 5]
#: Tokens of a tile of the head.
TILE = 16


class Sure(FakeDenoiser):
    """Each position has one score of 60 to 90 and the next 16 to 34 below: probabilities of 1 - 1e-7 to
    1 - 2e-15, any two of a pass further apart than float64's steps below 1. The statistics are those of an
    engine whose head is in tiles. With `guidance` this is so of the scores that cfg_scale makes: without the
    prompt they say little.
    """

    def __init__(self, seed: int, guidance: float = 0.0) -> None:
        super().__init__(VOCAB, seed)
        self.guidance = guidance

    def scores(self, ids: Any, soft: Floats | None = None) -> Floats:
        hashed = super().scores(ids)
        rng = np.random.default_rng(hashed.view(np.uint32).ravel())
        rows = len(hashed)
        if ids[0] == MASK:
            return rng.uniform(0, 0.2, (rows, VOCAB)).astype(np.float32)
        # The mask is never the best.
        z = rng.uniform(20, 24, (rows, VOCAB))
        best, second = rng.permuted(np.tile(np.arange(VOCAB - 1), (rows, 1)), axis=1)[:, :2].T
        lead = 16 + 18 * (rng.permutation(rows) + rng.uniform(0, 0.5, rows)) / rows
        z[np.arange(rows), best] = rng.uniform(60, 90, rows)
        z[np.arange(rows), second] = z[np.arange(rows), best] - lead
        return (z / (1 + self.guidance)).astype(np.float32)

    def denoise(self, ids: Ids, request: HeadRequest, soft: Floats | None = None) -> HeadOutput:
        z = self.scores(ids)
        z = z if request.rows is None else z[request.rows]
        state = HeadState(len(z), self.hidden_size, request, VOCAB)
        for start in range(0, VOCAB, TILE):
            stop = min(VOCAB, start + TILE)
            noise = None
            if request.gumbel is not None:
                noise = torch.from_numpy(request.gumbel(start, stop) * np.float32(request.gumbel_scale))
            own = torch.from_numpy(z[:, start:stop].copy())
            state.add(start, TilePart(*(part.numpy() for part in head_statistics(own, noise, None))))
            state.add_logits(start, own.numpy())
        return state.result()


def official(
    model: Sure, gen_length: int, block_length: int, steps: int, seed: int, **rule: Any
) -> list[int]:
    """`generate` of the authors' generate.py, and with threshold or factor Fast-dLLM's get_transfer_index and
    get_transfer_index_dynamic, with edgekit's noise for theirs. The noise covers what is still masked.
    """
    noise = PhiloxNoise(seed)
    x = torch.cat((torch.tensor(PROMPT), torch.full((gen_length,), MASK)))
    blocks = gen_length // block_length
    for block in range(blocks):
        begin = len(PROMPT) + block * block_length
        end, step = begin + block_length, 0
        while (x[begin:end] == MASK).any():
            logits = scores(model, x)
            if rule.get("cfg_scale"):
                blank = x.clone()
                blank[: len(PROMPT)] = MASK
                unconditional = scores(model, blank)
                logits = unconditional + (rule["cfg_scale"] + 1) * (logits - unconditional)
            if rule.get("logits_eos_inf"):
                logits[:, EOS] = -torch.inf
            masked = (x == MASK) & (torch.arange(len(x)) < end)
            noised = logits.exp()
            if temperature := rule.get("temperature"):
                count = int(masked.sum())
                gumbel = torch.from_numpy(noise.gumbel(count, VOCAB)(0, VOCAB)).double()
                noised[masked] /= (-gumbel).exp() ** temperature
            x0 = noised.argmax(-1)
            p = logits.softmax(-1)
            confidence = torch.where(masked, p.gather(-1, x0[:, None])[:, 0], -torch.inf)
            per_step = block_length * blocks // steps
            count = transferred(confidence[masked], rule, per_step)
            chosen = confidence.topk(count).indices
            # Otherwise which one is chosen would be the order of torch.topk.
            rest = confidence[masked & ~torch.isin(torch.arange(len(x)), chosen)]
            assert not len(rest) or confidence[chosen].min() > rest.max()
            x[chosen] = x0[chosen]
            step += 1
    return x[len(PROMPT) :].tolist()


def scores(model: Sure, x: Tensor) -> Tensor:
    return torch.from_numpy(model.scores(x.numpy())).double()


def transferred(confidence: Tensor, rule: dict[str, Any], per_step: int) -> int:
    """How many positions a step unmasks."""
    ordered = confidence.sort(descending=True).values
    if "threshold" in rule:
        return max(1, int((ordered >= rule["threshold"]).sum()))
    if "factor" in rule:
        needed = [1 - rule["factor"] / (n + 1) for n in range(1, len(ordered) + 1)]
        needed[0] = -1
        index = 0
        for index in range(len(needed)):
            if ordered[index] < needed[index]:
                break
        return index + 1 if index in (0, len(needed) - 1) else index
    return per_step


def answer(model: Sure, gen_length: int, block_length: int, steps: int, seed: int, **rule: Any) -> list[int]:
    options = {
        "mask_token_id": MASK, "gen_length": gen_length, "block_length": block_length,
        "eos_token_ids": [EOS], "stop_at_eos": False, **rule,
    }  # fmt: skip
    if not {"threshold", "factor"} & set(rule):
        options["steps"] = steps
    return committed(run("llada", model, PROMPT, options, seed))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"temperature": 6.0},
        {"cfg_scale": 0.25, "logits_budget_bytes": 4 * VOCAB * 5},
        {"logits_eos_inf": True},
        {"threshold": 1 - 1e-12},
        {"threshold": 1 - 1e-9, "logits_eos_inf": True},
        {"factor": 1e-11},
    ],
    ids=str,
)
def test_tokens_are_those_of_the_official_script(rule: dict[str, Any], seed: int) -> None:
    model, lengths = Sure(seed, rule.get("cfg_scale", 0.0)), (32, 16, 16)
    assert answer(model, *lengths, seed, **rule) == official(model, *lengths, seed, **rule)
