"""The denoising loop of LLaDA: masked tokens, unmasked by confidence, block after block from left to right.

Low-confidence remasking as in the authors' `generate.py`, and the parallel decoding rules of Fast-dLLM
(threshold and factor) without caches. A position counts as open until it is committed, even if the model
predicts the mask token itself for it, so every step makes progress.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgekit.runtime.sampling import options as opt
from edgekit.runtime.sampling import portable
from edgekit.runtime.sampling.errors import InvalidOption, NonFiniteLogits
from edgekit.runtime.sampling.events import CancelCheck, Committed, Done, Draft, Event, Stats
from edgekit.runtime.sampling.noise import Noise
from edgekit.runtime.sampling.passes import Passes, check_prompt, wanted
from edgekit.runtime.sampling.portable import Doubles
from edgekit.runtime.sampling.schedule import (
    answer_end,
    count_above_threshold,
    count_by_factor,
    most_confident,
    transfer_counts,
)
from edgekit.runtime.sampling.types import Denoiser, Floats, GumbelTile, HeadRequest, Ids

# Vocabulary ids that get their noise at once when a step works on full scores.
_NOISE_TILE = 8192

_REMASKING = ("low_confidence", "random")

ALIASES = {
    "max_new_tokens": "gen_length",
    "mask_id": "mask_token_id",
    "eos_token_id": "eos_token_ids",
    "eot_token_id": "eot_token_ids",
}


@dataclass(frozen=True)
class LladaOptions:
    """Options of low-confidence remasking; the defaults are those of the authors' script.

    gen_length tokens are produced in blocks of block_length with steps / (gen_length / block_length) steps
    each; both divisions must be exact. `threshold` (confidence 0..1) or `factor` replaces the fixed number of
    steps by Fast-dLLM's parallel decoding. temperature > 0 samples with Gumbel noise; confidences always come
    from the clean scores. remasking is "low_confidence" or "random". cfg_scale > 0 adds a pass without the
    prompt. logits_eos_inf forbids eos tokens; confidence_eos_eot_inf commits eos and eot tokens last.
    stop_at_eos ends the answer at its first end token once nothing before it is open; the tokens before it
    are the same as without. `logits_budget_bytes` bounds the full scores that cfg_scale and logits_eos_inf
    need.

    Raises InvalidOption.
    """

    mask_token_id: int = field(metadata=opt.integer("Token that stands for an open position.", 0))
    gen_length: int = field(
        default=128, metadata=opt.integer("Length of the answer in tokens, rounded up to whole blocks.", 1)
    )
    steps: int = field(
        default=128, metadata=opt.integer("Denoising steps, unless threshold or factor is set.", 1)
    )
    block_length: int = field(
        default=128, metadata=opt.integer("Tokens of a block; blocks are decoded from left to right.", 1)
    )
    temperature: float = field(
        default=0.0, metadata=opt.number("Gumbel noise on the scores; 0 takes the best token.", 0)
    )
    cfg_scale: float = field(
        default=0.0, metadata=opt.number("Classifier-free guidance; above 0 every step has two passes.", 0)
    )
    remasking: str = field(
        default="low_confidence", metadata=opt.choice("Which open positions wait.", _REMASKING)
    )
    threshold: float | None = field(
        default=None,
        metadata=opt.number(
            "Confidence at which a token is committed at once (Fast-dLLM).",
            0,
            exclusive=True,
            maximum=1,
            optional=True,
        ),
    )
    factor: float | None = field(
        default=None,
        metadata=opt.number(
            "Tokens a step by their confidences together (Fast-dLLM).", 0, exclusive=True, optional=True
        ),
    )
    eos_token_ids: tuple[int, ...] = field(default=(), metadata=opt.tokens("Tokens that end the answer."))
    eot_token_ids: tuple[int, ...] = field(default=(), metadata=opt.tokens("Tokens that end a turn."))
    logits_eos_inf: bool = field(default=False, metadata=opt.flag("Forbid the tokens that end the answer."))
    confidence_eos_eot_inf: bool = field(
        default=False, metadata=opt.flag("Commit tokens that end the answer or the turn last.")
    )
    stop_at_eos: bool = field(
        default=False, metadata=opt.flag("End at the first end token once nothing before it is open.")
    )
    logits_budget_bytes: int = field(
        default=64 << 20, metadata=opt.integer("Memory for full scores, where they are needed.", 1)
    )
    ignored_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        opt.check_fields(self, "mask_token_id", "gen_length", "steps", "block_length", "logits_budget_bytes")
        opt.check_fields(self, "temperature", "cfg_scale", "remasking")
        opt.check_fields(self, "logits_eos_inf", "confidence_eos_eot_inf", "stop_at_eos")
        opt.check_fields(self, "eos_token_ids", "eot_token_ids")
        for name in ("logits_eos_inf", "confidence_eos_eot_inf", "stop_at_eos"):
            if getattr(self, name) and not self.eos_token_ids:
                raise InvalidOption(f"{name} needs eos_token_ids; set the end tokens of this model")
        if self.gen_length % self.block_length:
            raise InvalidOption(
                f"gen_length {self.gen_length} is not a multiple of block_length {self.block_length}; "
                f"use {-(-self.gen_length // self.block_length) * self.block_length}"
            )
        self._check_steps()

    def _check_steps(self) -> None:
        if self.threshold is not None and self.factor is not None:
            raise InvalidOption("threshold and factor are both set; use one of them")
        if self.threshold is None and self.factor is None:
            if self.steps % self.blocks:
                raise InvalidOption(
                    f"steps {self.steps} is not a multiple of the {self.blocks} blocks "
                    f"(gen_length / block_length); use {-(-self.steps // self.blocks) * self.blocks}"
                )
            return
        if self.remasking != "low_confidence":
            raise InvalidOption("threshold and factor compare confidences; use remasking low_confidence")
        opt.check_fields(self, "threshold", "factor")

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.gen_length // self.block_length

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer."""
        return self.eos_token_ids + self.eot_token_ids

    @classmethod
    def from_generation_config(cls, config: Mapping[str, Any], /, **overrides: Any) -> LladaOptions:
        """Options of a generation config; keys of other samplers end up in `ignored_keys`. Raises
        InvalidOption."""
        return cls(**opt.from_config(cls, config, overrides, ALIASES))

    def extent(self) -> tuple[int, int]:
        """Blocks of a generation and denoising steps of each, at most."""
        fixed = self.threshold is None and self.factor is None
        return self.blocks, self.steps // self.blocks if fixed else self.block_length

    def kept(self, ids: Ids) -> Ids:
        """What of committed ids [T] stays in a conversation: all, because stop_at_eos decides where they
        end.
        """
        return ids

    def lengths(self, prompt_length: int) -> opt.Lengths:
        """What a prompt of this length needs: it stands on the canvas, with the whole answer."""
        return opt.Lengths(self.gen_length, 0, prompt_length + self.gen_length)

    def new_tokens_text(self, prompt_length: int) -> str:
        """How many tokens a prompt of this length gets, in words."""
        several = 1 < self.block_length < self.gen_length
        return f"{self.gen_length} new tokens" + (f", whole blocks of {self.block_length}," * several)


def generate(
    denoiser: Denoiser,
    prompt_ids: Ids | Sequence[int],
    options: LladaOptions,
    noise: Noise,
    *,
    cancelled: CancelCheck | None = None,
) -> Generator[Event, None, None]:
    """Yields a Draft per step (the whole answer, masks where it is open), a Committed per block and Done.

    Draws per step: the sample (gumbel, with temperature > 0), then the confidences (uniform, with random
    remasking); both cover the positions of the block that are still open, in order.
    Raises InvalidPrompt and InvalidOption at the first event, later NonFiniteLogits and what the denoiser
    raises.
    """
    prompt = check_prompt(prompt_ids, denoiser.vocab_size)
    opt.check_within_vocabulary(options, denoiser.vocab_size)
    denoiser.reset()
    stats = Stats()
    passes = Passes(denoiser, stats, options.logits_budget_bytes)
    ids = np.concatenate([prompt, np.full(options.gen_length, options.mask_token_id, dtype=np.int64)])
    first = prompt.shape[0]
    answer = ids[first:]
    ended = False
    for block in range(options.blocks):
        start = block * options.block_length
        part = answer[start : start + options.block_length]
        open_ = np.ones(options.block_length, dtype=np.bool_)
        end: int | None = None
        stats.canvases += 1
        step = 0
        while open_.any() and end is None:
            if cancelled is not None and cancelled():
                stats.finish_reason = "cancelled"
                yield Done(stats)
                return
            positions = np.flatnonzero(open_)
            tokens, confidence = _propose(passes, ids, first, first + start + positions, options, noise)
            stats.denoising_steps += 1
            picked = _choose(tokens, confidence, step, options)
            chosen = positions[picked]
            part[chosen] = tokens[picked]
            open_[chosen] = False
            accepted = np.zeros(options.gen_length, dtype=np.bool_)
            accepted[start + chosen] = True
            step += 1
            yield Draft(block, step, 0, answer.copy(), accepted)
            if options.stop_at_eos:
                end = answer_end(part, open_, options.end_ids)
        committed = part[:end].copy()
        stats.committed_tokens += committed.shape[0]
        ended = ended or bool(np.isin(committed, options.end_ids).any())
        yield Committed(block, committed)
        if end is not None:
            break
    stats.finish_reason = "eos" if ended else "length"
    yield Done(stats)


def _confidence(odds: Doubles) -> Doubles:
    """Minus the odds (1 - p) / p against a token: it orders as p does, and does not saturate at p = 1."""
    return -np.minimum(odds, np.finfo(np.float64).max)


def _probability(confidence: Doubles) -> Doubles:
    return np.where(np.isneginf(confidence), -np.inf, 1 / (1 - confidence))


def _choose(tokens: Ids, confidence: Doubles, step: int, options: LladaOptions) -> Ids:
    """Which of the open positions to commit, as indices into them."""
    if options.confidence_eos_eot_inf:
        confidence = np.where(np.isin(tokens, options.end_ids), -np.inf, confidence)
    if options.threshold is not None:
        count = count_above_threshold(_probability(confidence), options.threshold)
    elif options.factor is not None:
        count = count_by_factor(_probability(confidence), options.factor)
    else:
        count = transfer_counts(options.block_length, options.steps // options.blocks)[step]
    return most_confident(confidence, count)


def _propose(
    passes: Passes, ids: Ids, first: int, rows: Ids, options: LladaOptions, noise: Noise
) -> tuple[Ids, Doubles]:
    """A token and its confidence for each of `rows` (indices into ids), int64 and float64 [R]."""
    vocab_size = passes.vocab_size
    tile = noise.gumbel(rows.shape[0], vocab_size) if options.temperature > 0 else None
    if options.cfg_scale > 0 or options.logits_eos_inf:
        tokens, confidence = _propose_from_scores(passes, ids, first, rows, options, tile)
    else:
        request = HeadRequest(rows=rows, gumbel=tile, gumbel_scale=options.temperature)
        output = passes.run(ids, request)
        if tile is None:
            tokens, odds = output.argmax, output.others.astype(np.float64)
        else:
            tokens = wanted(output.sample, "sample")
            with np.errstate(divide="ignore"):
                odds = 1 / wanted(output.sample_prob, "sample_prob").astype(np.float64) - 1
            odds = np.where(tokens == output.argmax, output.others, odds)
        confidence = _confidence(odds)
    if options.remasking == "random":
        confidence = noise.uniform(rows.shape[0]).astype(np.float32).astype(np.float64)
    return tokens, confidence


def _propose_from_scores(
    passes: Passes, ids: Ids, first: int, rows: Ids, options: LladaOptions, tile: GumbelTile | None
) -> tuple[Ids, Doubles]:
    """The same from full scores, for what a statistic of the scores cannot express: mixing two passes, and
    leaving tokens out of the softmax."""
    without_prompt = ids.copy()
    without_prompt[:first] = options.mask_token_id
    tokens = np.empty(rows.shape[0], dtype=np.int64)
    confidence = np.empty(rows.shape[0], dtype=np.float64)
    for chunk in passes.row_chunks(rows.shape[0]):
        request = HeadRequest(rows=rows[chunk], logits=True)
        # Both passes of the guidance replace each other's hidden states, so only plain chunks can reuse them.
        reuse = chunk.start > 0 and options.cfg_scale == 0
        scores = wanted((passes.again(request) if reuse else passes.run(ids, request)).logits, "logits")
        if options.cfg_scale > 0:
            base = wanted(passes.run(without_prompt, request).logits, "logits")
            scores = base + np.float32(options.cfg_scale + 1) * (scores - base)
        if options.logits_eos_inf:
            scores = scores.copy()
            scores[:, list(options.eos_token_ids)] = -np.inf
        highest = scores.max(axis=1)
        bad = int(np.count_nonzero(~np.isfinite(highest)))
        if bad:
            raise NonFiniteLogits(
                f"cfg_scale and logits_eos_inf leave {bad} of {highest.shape[0]} positions without a finite "
                "score; use a smaller cfg_scale or fewer eos_token_ids"
            )
        tokens[chunk] = _argmax_with_noise(scores, tile, chunk, options.temperature)
        # Row by row: the exponentials of all of them would need as much memory as the scores.
        odds = [
            _odds_against(row, best, token)
            for row, best, token in zip(scores, highest, tokens[chunk], strict=True)
        ]
        confidence[chunk] = _confidence(np.array(odds))
    return tokens, confidence


def _odds_against(row: Floats, highest: np.float32, token: np.int64) -> np.float64:
    e = portable.exp_wide(row.astype(np.float64) - np.float64(highest))
    own = e[token].copy()
    e[token] = 0
    with np.errstate(divide="ignore"):
        return portable.total(e) / own


def _argmax_with_noise(scores: Floats, tile: GumbelTile | None, chunk: slice, temperature: float) -> Ids:
    """argmax(scores + temperature * noise): the logarithm of exp(scores) / (-log u)^temperature."""
    if tile is None:
        return scores.argmax(axis=1)
    best = np.full(scores.shape[0], -np.inf, dtype=np.float32)
    tokens = np.zeros(scores.shape[0], dtype=np.int64)
    for start in range(0, scores.shape[1], _NOISE_TILE):
        stop = min(scores.shape[1], start + _NOISE_TILE)
        noised = scores[:, start:stop] + np.float32(temperature) * tile(start, stop)[chunk]
        local = noised.argmax(axis=1)
        value = noised[np.arange(noised.shape[0]), local]
        better = value > best
        best[better] = value[better]
        tokens[better] = start + local[better]
    return tokens
