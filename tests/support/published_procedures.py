"""Published decoding procedures, greedy and without keys and values: every pass is a whole forward of a
transformers model. Written after SDAR's generate.py, Fast_dLLM v2's `generate`, dllm's BD3LMSampler and
MDLMSampler (LLaDA's generate.py), CoDA's generation (Dream's), and the block and autoregressive decoding of
Nemotron-Labs-Diffusion.

Each returns the tokens behind the prompt, those of the last block included, as the scripts leave them;
`answer` cuts them where a user's answer ends.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Oracle:
    """A transformers model, and how many forwards it was asked for."""

    model: torch.nn.Module
    forwards: int = field(default=0)

    @torch.no_grad()
    def logits(self, ids: list[int], numbers: Tensor, rows: int) -> Tensor:
        """Logits [rows, V] at the end. A position sees those whose number in `numbers` is at most its own."""
        self.forwards += 1
        hidden = torch.where(numbers[:, None] >= numbers[None], 0.0, -1e30)[None, None]
        given: Any = torch.tensor([ids])
        return self.model(input_ids=given, attention_mask=hidden, use_cache=False).logits[0, -rows:]


def answer(tokens: list[int], most: int, ends: Collection[int] = ()) -> list[int]:
    """The first `most` tokens, up to the first of `ends`, which is part of it."""
    cut = tokens[:most]
    stop = next((i for i, token in enumerate(cut) if token in ends), len(cut))
    return cut[: stop + 1]


def _best(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest tokens and their probabilities."""
    probability, token = torch.softmax(logits.double(), -1).max(-1)
    return token, probability


def _shares(masks: int, steps: int) -> list[int]:
    """Tokens for each step, the first steps one more where they do not divide."""
    return [masks // steps + (i < masks % steps) for i in range(steps)]


def sdar(
    oracle: Oracle, prompt: list[int], most: int, *, mask: int, block: int, steps: int,
    threshold: float | None = None, order: str = "low_confidence", ends: Collection[int] = (),
) -> list[int]:  # fmt: skip
    """Blocks are those of the position: the end of the prompt shares its block with the first tokens. Every
    step commits what is above the threshold, or its share where that is more.
    """
    blocks = -(-(len(prompt) + most) // block)
    ids = prompt + [mask] * (blocks * block - len(prompt))
    shares = _shares(block, steps)
    for number in range(len(prompt) // block, blocks):
        start, stop = number * block, (number + 1) * block
        numbers = torch.arange(stop) // block
        for step in range(steps + 1):
            open_ = [i for i in range(start, stop) if ids[i] == mask]
            if not open_:
                break
            token, probability = _best(oracle.logits(ids[:stop], numbers, block))
            ranked = sorted(open_, key=lambda i: -float(probability[i - start]))
            chosen = open_[: shares[step]] if order == "sequential" else ranked[: shares[step]]
            if threshold is not None and order == "low_confidence":
                above = [i for i in open_ if float(probability[i - start]) > threshold]
                chosen = above if len(above) >= shares[step] else chosen
            for i in chosen:
                ids[i] = int(token[i - start])
        if set(ends) & set(ids[len(prompt) : stop]):
            return ids[len(prompt) : stop]
    return ids[len(prompt) :]


def fast_dllm(
    oracle: Oracle, prompt: list[int], most: int, *, mask: int, block: int, small: int,
    threshold: float = 1.0, ends: Collection[int] = (),
) -> list[int]:  # fmt: skip
    """Logits of a position are those of the one before it, the first of a block keeps its own; the first
    token of a block is the last block's next token, and a block is filled in small ones from left to right.
    The script encodes prompts that are longer than a block; one of exactly a block, which it then never shows
    to the model, is encoded here too.
    """
    ids = list(prompt)

    def ended() -> bool:
        made = ids[len(prompt) :]
        at = next((i for i, token in enumerate(made) if token in ends), None)
        return at is not None and mask not in made[:at]

    def following(count: int) -> int:
        numbers = torch.arange(count) // block
        return int(oracle.logits(ids[:count], numbers, block)[-1].argmax())

    if len(ids) % block == 0:
        ids.append(following(len(ids)))
    while len(ids) - len(prompt) < most + 1 and not ended():
        stop = -(-len(ids) // block) * block
        ids += [mask] * (stop - len(ids))
        numbers = torch.arange(stop) // block
        for begin in range(stop - block, stop, small):
            while mask in ids[begin : begin + small] and not ended():
                rows = oracle.logits(ids, numbers, block)
                rows = torch.cat((rows[:1], rows[:-1]))
                token, probability = _best(rows)
                at = begin - (stop - block)
                open_ = [i for i in range(at, at + small) if ids[stop - block + i] == mask]
                best = max(open_, key=lambda i: float(probability[i]))
                for i in open_:
                    if float(probability[i]) > threshold or i == best:
                        ids[stop - block + i] = int(token[i])
        if ended():
            break
        ids.append(following(stop))
    return ids[len(prompt) :]


def bd3lm(
    oracle: Oracle, prompt: list[int], most: int, *, mask: int, block: int, steps: int,
    ends: Collection[int] = (),
) -> list[int]:  # fmt: skip
    """Blocks are counted back from the end of the prompt, whose first one is the short one; a block has so
    many `steps`, which divide its length.
    The last block is as long as what is left of `most`.
    """
    ids, short = list(prompt), -len(prompt) % block
    while len(ids) - len(prompt) < most:
        length = min(block, most - (len(ids) - len(prompt)))
        start = len(ids)
        ids += [mask] * length
        numbers = (torch.arange(len(ids)) + short) // block
        for share in _shares(length, min(steps, length)):
            open_ = [i for i in range(start, len(ids)) if ids[i] == mask]
            token, probability = _best(oracle.logits(ids, numbers, length))
            for i in sorted(open_, key=lambda i: -float(probability[i - start]))[:share]:
                ids[i] = int(token[i - start])
        if set(ends) & set(ids[start:]):
            break
    return ids[len(prompt) :]


def nemotron(
    oracle: Oracle, prompt: list[int], most: int, *, mask: int, block: int, steps: int,
    threshold: float | None, causal_start: bool = True, ends: Collection[int] = (),
) -> list[int]:  # fmt: skip
    """Committed text is causal, and its next token is the first of a block (`causal_context` of the script).
    A step commits what reaches the threshold, the best one at least; without a threshold its share of the
    masks.
    """
    ids = list(prompt)
    while len(ids) - len(prompt) < most:
        start = len(ids)
        first = autoregressive(oracle, ids, 1) if causal_start else [mask]
        ids += first + [mask] * (block - 1)
        numbers = torch.arange(len(ids))
        numbers[start:] = start
        for share in _shares(ids[start:].count(mask), steps):
            open_ = [i for i in range(start, len(ids)) if ids[i] == mask]
            ended = next((i for i in range(start, len(ids)) if ids[i] in ends), None)
            if not open_ or (ended is not None and mask not in ids[start:ended]):
                break
            token, probability = _best(oracle.logits(ids, numbers, block))
            ranked = sorted(open_, key=lambda i: -float(probability[i - start]))
            chosen = ranked[:share]
            if threshold is not None:
                chosen = ranked[:1] + [i for i in ranked[1:] if float(probability[i - start]) >= threshold]
            for i in chosen:
                ids[i] = int(token[i - start])
        if set(ends) & set(ids[start:]):
            break
    return ids[len(prompt) :]


def autoregressive(oracle: Oracle, prompt: list[int], most: int, ends: Collection[int] = ()) -> list[int]:
    """Greedy and causal, one token after the other."""
    ids = list(prompt)
    while len(ids) - len(prompt) < most and not (len(ids) > len(prompt) and ids[-1] in ends):
        ids.append(int(oracle.logits(ids, torch.arange(len(ids)), 1)[-1].argmax()))
    return ids[len(prompt) :]


def mdlm(
    oracle: Oracle, prompt: list[int], most: int, *, mask: int, block: int, steps: int
) -> list[int]:  # fmt: skip
    """The whole answer is on the canvas, and everything sees everything; blocks, each of so many `steps`, are
    filled from left to right.
    """
    ids = prompt + [mask] * most
    numbers = torch.zeros(len(ids), dtype=torch.int64)
    for start in range(len(prompt), len(ids), block):
        for share in _shares(block, steps):
            open_ = [i for i in range(start, start + block) if ids[i] == mask]
            token, probability = _best(oracle.logits(ids, numbers, len(ids)))
            for i in sorted(open_, key=lambda i: -float(probability[i]))[:share]:
                ids[i] = int(token[i])
    return ids[len(prompt) :]


def coda(oracle: Oracle, prompt: list[int], most: int, *, mask: int, steps: int) -> list[int]:
    """The whole answer is on the canvas. Logits of a position are those of the one before it; a step commits
    the positions of least entropy, as many as its part of the time from 1 to 1e-3 asks for.
    """
    ids = prompt + [mask] * most
    numbers, times = torch.zeros(len(ids), dtype=torch.int64), torch.linspace(1, 1e-3, steps + 1)
    for step in range(steps):
        open_ = [i for i in range(len(ids)) if ids[i] == mask]
        rows = oracle.logits(ids, numbers, len(ids))
        rows = torch.cat((rows[:1], rows[:-1]))
        entropy = torch.distributions.Categorical(logits=rows.double()).entropy()
        last = step == steps - 1
        count = len(open_) if last else int(len(open_) * (1 - times[step + 1] / times[step]))
        for i in sorted(open_, key=lambda i: float(entropy[i]))[:count]:
            ids[i] = int(rows[i].argmax())
    return ids[len(prompt) :]
