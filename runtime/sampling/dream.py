"""The denoising loop of Dream: masked tokens anywhere in the answer, unmasked in one of four orders.

Dream keeps the autoregressive layout of its ancestor: row j - 1 of the scores predicts position j. Nucleus
(top_p) and top_k filters are exact: they work on the head's best candidates, and rows whose nucleus is larger
than that are asked for their full scores, a bounded number of rows at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.runtime.sampling import options as opt
from edgekit.runtime.sampling import portable
from edgekit.runtime.sampling.errors import InvalidOption
from edgekit.runtime.sampling.events import CancelCheck, Committed, Done, Draft, Event, Stats
from edgekit.runtime.sampling.noise import Noise
from edgekit.runtime.sampling.passes import Passes, check_prompt, wanted
from edgekit.runtime.sampling.schedule import (
    answer_end,
    most_confident,
    timesteps,
    transfer_probability,
)
from edgekit.runtime.sampling.types import Denoiser, Floats, HeadRequest, Ids

ORDERS = ("origin", "maskgit_plus", "topk_margin", "entropy")

# Enough for the nucleus of all but the flattest rows, and little beside the vocabulary.
_CANDIDATES = 256
# The published entropy is sum p * log(p + 1e-10), so that p = 0 needs no special case.
_LOG_FLOOR = 1e-10

ALIASES = {"mask_id": "mask_token_id", "eos_token_id": "eos_token_ids", "gen_length": "max_new_tokens"}


@dataclass(frozen=True)
class DreamOptions:
    """Options of Dream's diffusion_generate.

    max_new_tokens positions are unmasked over `steps` times from 1 down to eps. alg: "origin" (a random
    subset each step), "maskgit_plus" (highest probability first), "topk_margin" (largest lead over the second
    candidate) or "entropy" (lowest entropy). temperature, top_p and top_k shape the distribution that tokens
    are drawn from and confidences are measured on. alg_temp > 0 draws the positions from softmax(confidence /
    alg_temp). stop_at_eos ends the answer at its first end token once nothing before it is open; the tokens
    before it are the same as without. `logits_budget_bytes` bounds the full scores of rows with a large
    nucleus.

    Raises InvalidOption.
    """

    mask_token_id: int = field(metadata=opt.integer("Token that stands for an open position.", 0))
    max_new_tokens: int = field(default=128, metadata=opt.integer("Length of the answer in tokens.", 1))
    steps: int = field(default=512, metadata=opt.integer("Denoising steps.", 1))
    eps: float = field(
        default=1e-3,
        metadata=opt.number("Time at which denoising ends.", 0, exclusive=True, maximum=0.999),
    )
    alg: str = field(
        default="origin", metadata=opt.choice("Which open positions are unmasked first.", ORDERS)
    )
    alg_temp: float | None = field(
        default=None, metadata=opt.number("Randomness of that order; 0 or null: none.", 0, optional=True)
    )
    temperature: float = field(
        default=0.0, metadata=opt.number("Of the distribution that tokens are drawn from; 0: the best.", 0)
    )
    top_p: float | None = field(
        default=None,
        metadata=opt.number(
            "Draw from the likeliest tokens of this probability together.",
            0,
            exclusive=True,
            maximum=1,
            optional=True,
        ),
    )
    top_k: int | None = field(
        default=None, metadata=opt.integer("Draw from so many of the likeliest tokens.", 1, optional=True)
    )
    eos_token_ids: tuple[int, ...] = field(default=(), metadata=opt.tokens("Tokens that end the answer."))
    stop_at_eos: bool = field(
        default=False, metadata=opt.flag("End at the first end token once nothing before it is open.")
    )
    logits_budget_bytes: int = field(
        default=64 << 20, metadata=opt.integer("Memory for full scores, where they are needed.", 1)
    )
    ignored_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        opt.check_fields(self, "mask_token_id", "max_new_tokens", "steps", "logits_budget_bytes", "eps")
        opt.check_fields(self, "alg", "alg_temp", "temperature", "top_p", "top_k", "stop_at_eos")
        opt.check_fields(self, "eos_token_ids")
        if self.stop_at_eos and not self.eos_token_ids:
            raise InvalidOption("stop_at_eos needs eos_token_ids; set the end tokens of this model")

    @classmethod
    def from_generation_config(cls, config: Mapping[str, Any], /, **overrides: Any) -> DreamOptions:
        """Options of a generation config; keys of other samplers end up in `ignored_keys`. Raises
        InvalidOption."""
        return cls(**opt.from_config(cls, config, overrides, ALIASES))

    def extent(self) -> tuple[int, int]:
        """Canvases of a generation and denoising steps of each, at most."""
        return 1, self.steps

    def kept(self, ids: Ids) -> Ids:
        """What of committed ids [T] stays in a conversation: all, because stop_at_eos decides where they
        end.
        """
        return ids

    def lengths(self, prompt_length: int) -> opt.Lengths:
        """What a prompt of this length needs: it stands on the canvas, with the whole answer."""
        return opt.Lengths(self.max_new_tokens, 0, prompt_length + self.max_new_tokens)

    def new_tokens_text(self, prompt_length: int) -> str:
        """How many tokens a prompt of this length gets, in words."""
        return f"{self.max_new_tokens} new tokens"


def generate(
    denoiser: Denoiser,
    prompt_ids: Ids | Sequence[int],
    options: DreamOptions,
    noise: Noise,
    *,
    cancelled: CancelCheck | None = None,
) -> Generator[Event, None, None]:
    """Yields a Draft per step that unmasks something, one Committed and Done.

    A step that unmasks nothing (there are such steps when `steps` exceeds the open positions) would throw its
    pass away, so it runs none. Draws per step: with "origin" which of the open positions are unmasked
    (uniform, one for each); the sample, with temperature > 0 (gumbel over the positions that are proposed
    for, or, with a filter, uniform, one for each); the positions, with alg_temp > 0 (uniform, one for each
    open one).
    Raises InvalidPrompt and InvalidOption at the first event, later NonFiniteLogits and what the denoiser
    raises.
    """
    prompt = check_prompt(prompt_ids, denoiser.vocab_size)
    opt.check_within_vocabulary(options, denoiser.vocab_size)
    denoiser.reset()
    stats = Stats(canvases=1)
    passes = Passes(denoiser, stats, options.logits_budget_bytes)
    ids = np.concatenate([prompt, np.full(options.max_new_tokens, options.mask_token_id, dtype=np.int64)])
    first = prompt.shape[0]
    answer = ids[first:]
    open_ = np.ones(options.max_new_tokens, dtype=np.bool_)
    end: int | None = None
    times = timesteps(options.steps, options.eps)
    for step in range(options.steps):
        if not open_.any() or end is not None:
            break
        if cancelled is not None and cancelled():
            stats.finish_reason = "cancelled"
            yield Done(stats)
            return
        positions = np.flatnonzero(open_)
        share = transfer_probability(times, step)
        if options.alg == "origin":
            chosen = positions[noise.uniform(positions.shape[0]) < share]
            if not chosen.size:
                continue
            answer[chosen], _ = _propose(passes, ids, first + chosen, options, noise)
        else:
            count = int(np.float32(positions.shape[0]) * share)
            if not count:
                continue
            tokens, confidence = _propose(passes, ids, first + positions, options, noise)
            picked = _choose(confidence, count, options, noise)
            chosen = positions[picked]
            answer[chosen] = tokens[picked]
        open_[chosen] = False
        stats.denoising_steps += 1
        accepted = np.zeros(options.max_new_tokens, dtype=np.bool_)
        accepted[chosen] = True
        yield Draft(0, step + 1, 0, answer.copy(), accepted)
        if options.stop_at_eos:
            end = answer_end(answer, open_, options.eos_token_ids)
    committed = answer[:end].copy()
    stats.committed_tokens = committed.shape[0]
    stats.finish_reason = "eos" if np.isin(committed, options.eos_token_ids).any() else "length"
    yield Committed(0, committed)
    yield Done(stats)


def _choose(confidence: Floats, count: int, options: DreamOptions, noise: Noise) -> Ids:
    """Which of the open positions to unmask, as indices into them."""
    if not options.alg_temp:
        return most_confident(confidence, count)
    # The top n of scores with Gumbel noise are n draws without replacement from their softmax.
    gumbel = -portable.log(-portable.log(noise.uniform(confidence.shape[0])))
    return most_confident(confidence.astype(np.float64) / options.alg_temp + gumbel, count)


def _propose(
    passes: Passes, ids: Ids, positions: Ids, options: DreamOptions, noise: Noise
) -> tuple[Ids, Floats]:
    """A token and its confidence for each of `positions` (indices into ids), int64 and float32 [R]."""
    # Row j - 1 predicts position j; nothing precedes position 0, which keeps its own row.
    rows = np.maximum(positions - 1, 0)
    if options.top_k is None and (options.top_p is None or options.top_p >= 1):
        return _propose_unfiltered(passes, ids, rows, options, noise)
    return _propose_filtered(passes, ids, rows, options, noise)


def _propose_unfiltered(
    passes: Passes, ids: Ids, rows: Ids, options: DreamOptions, noise: Noise
) -> tuple[Ids, Floats]:
    sampled = options.temperature > 0
    margin = options.alg == "topk_margin"
    output = passes.run(
        ids,
        HeadRequest(
            rows=rows,
            temperature=options.temperature if sampled else 1.0,
            gumbel=noise.gumbel(rows.shape[0], passes.vocab_size) if sampled else None,
            top_k=min(2, passes.vocab_size) if margin else 0,
        ),
    )
    tokens = wanted(output.sample, "sample") if sampled else output.argmax
    if options.alg == "entropy":
        return tokens, -output.entropy
    if margin:
        best = portable.exp(wanted(output.top_z, "top_z") - output.log_z[:, None])
        return tokens, best[:, 0] - best[:, 1:].sum(axis=1)
    if sampled:
        return tokens, wanted(output.sample_prob, "sample_prob")
    return tokens, (1 / (1 + output.others.astype(np.float64))).astype(np.float32)


def _propose_filtered(
    passes: Passes, ids: Ids, rows: Ids, options: DreamOptions, noise: Noise
) -> tuple[Ids, Floats]:
    temperature = options.temperature if options.temperature > 0 else 1.0
    candidates = min(options.top_k or _CANDIDATES, passes.vocab_size)
    uniform = noise.uniform(rows.shape[0]) if options.temperature > 0 else None
    output = passes.run(ids, HeadRequest(rows=rows, temperature=temperature, top_k=candidates))
    top_z, top_ids = wanted(output.top_z, "top_z"), wanted(output.top_ids, "top_ids")
    probabilities = portable.exp(top_z - output.log_z[:, None])
    tokens, confidence = _draw(top_ids, probabilities, uniform, options)
    if options.top_k is not None or candidates == passes.vocab_size or options.top_p is None:
        return tokens, confidence
    mass = portable.total(probabilities)
    unresolved = np.flatnonzero(mass <= options.top_p)
    for chunk in passes.row_chunks(unresolved.shape[0]):
        some = unresolved[chunk]
        scores = wanted(
            passes.again(HeadRequest(rows=rows[some], temperature=temperature, logits=True)).logits, "logits"
        )
        order = np.argsort(-scores, axis=1, kind="stable")
        probabilities = portable.exp(np.take_along_axis(scores, order, axis=1) - output.log_z[some, None])
        some_uniform = None if uniform is None else uniform[some]
        tokens[some], confidence[some] = _draw(order, probabilities, some_uniform, options)
    return tokens, confidence


def _draw(
    ids: Ids, probabilities: Floats, uniform: NDArray[np.float64] | None, options: DreamOptions
) -> tuple[Ids, Floats]:
    """Filters, renormalises and draws. ids and probabilities [R, k] are the k best of each row, descending,
    of which k is already limited by top_k. Without `uniform` the best token is taken, otherwise the first
    whose cumulative probability reaches the row's number."""
    cumulative = np.cumsum(probabilities, axis=1, dtype=np.float64)
    kept = np.ones(ids.shape, dtype=np.bool_)
    if options.top_p is not None and options.top_p < 1:
        kept[:, 1:] = cumulative[:, :-1] <= options.top_p
    filtered = np.where(kept, probabilities, 0).astype(np.float64)
    filtered /= portable.total(filtered)[:, None]
    rows = np.arange(ids.shape[0])
    if uniform is None:
        index = np.zeros(ids.shape[0], dtype=np.int64)
    else:
        below = (np.cumsum(filtered, axis=1) < uniform[:, None]).sum(axis=1)
        index = np.minimum(below, kept.sum(axis=1) - 1)
    if options.alg == "entropy":
        confidence = portable.total(filtered * portable.log(filtered + _LOG_FLOOR))
    elif options.alg == "topk_margin":
        confidence = filtered[:, 0] - (filtered[:, 1] if ids.shape[1] > 1 else 0)
    else:
        confidence = filtered[rows, index]
    return ids[rows, index].astype(np.int64), confidence.astype(np.float32)
