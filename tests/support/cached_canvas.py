"""Fast-dLLM's procedures (NVlabs/Fast-dLLM, llada/generate.py: `generate_with_prefix_cache` and
`generate_with_dual_cache`; dream/model/generation_utils_block.py: `_sample`), and dKV-Cache-Decode (arXiv
2505.15781, equation 4; for Dream "Un&Right-Shift" of its appendix), over the float reference model, as plain
loops over full scores.

Unlike the scripts a position is open until it is committed, a pass that could commit nothing is not run, a
canvas may be partly given, and the last of so many passes may settle the whole answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from edgekit.export.models.base import DENOISE
from edgekit.export.reference import PrefixKV, ReferenceModel
from edgekit.runtime.sampling import PhiloxNoise
from support.acceptance_reference import fast_dllm_factor


class Cached:
    """A canvas whose keys and values are kept: `whole` computes all of it, `part` some of its rows, which see
    those that are kept of every position outside them, `delayed` those that it has not kept before.
    """

    def __init__(self, model: ReferenceModel, refresh: int = 1) -> None:
        self.model = model
        self.refresh = refresh  # every so many passes `delayed` computes everything
        self.kept: PrefixKV = []
        self.there = np.zeros(0, bool)  # rows that `delayed` has kept
        self.age = 0  # passes since it computed everything
        self.passes: list[int] = []  # rows of each

    def whole(self, ids: np.ndarray) -> Tensor:
        """Logits [T, V]."""
        logits, self.kept = self._pass(ids, np.arange(len(ids)), None)
        return logits

    def part(self, ids: np.ndarray, start: int, stop: int) -> Tensor:
        """Logits [stop - start, V] of the rows of the canvas `ids` from `start` to `stop`."""
        others = torch.from_numpy(np.delete(np.arange(len(ids)), np.s_[start:stop]))
        seen = [(k[:, :, others], v[:, :, others]) for k, v in self.kept]
        return self._pass(ids[start:stop], np.arange(start, stop), seen)[0]

    def delayed(self, ids: np.ndarray, settled: np.ndarray, begins: bool) -> Tensor:
        """Logits [T, V] of the canvas `ids`, NaN of rows that are not computed. Rows that are `settled` are
        not computed again. `begins`: everything is computed.
        """
        if begins or self.age == self.refresh or len(self.there) != len(ids):
            self.there, self.age = np.zeros(len(ids), bool), 0
        rows, before = np.flatnonzero(~self.there), torch.from_numpy(np.flatnonzero(self.there))
        seen = [(k[:, :, before], v[:, :, before]) for k, v in self.kept] if len(before) else None
        found, own = self._pass(ids[rows], rows, seen)
        if seen is None:
            self.kept = [(k.clone(), v.clone()) for k, v in own]
        for (k, v), (new_k, new_v) in zip(self.kept, own, strict=True):
            k[:, :, rows], v[:, :, rows] = new_k, new_v
        self.there, self.age = settled.copy(), self.age + 1
        logits = torch.full((len(ids), found.shape[1]), torch.nan)
        logits[rows] = found
        return logits

    @torch.no_grad()
    def _pass(self, ids: np.ndarray, at: np.ndarray, seen: PrefixKV | None) -> tuple[Tensor, PrefixKV]:
        model = self.model
        self.passes.append(len(ids))
        x, rows = model.layers(
            model.embed(torch.from_numpy(ids)[None]), seen, torch.from_numpy(at), phase=DENOISE, causal=False
        )
        weight, eps = model._unit("norm.")["weight"], model.architecture.norm_eps
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
        return model.head(normed)[0], rows


@dataclass
class LladaLoop:
    """A generation; `passes` are the rows of each, `steps` what each one committed."""

    model: ReferenceModel
    cache: str
    mask: int
    block_length: int
    steps: int
    threshold: float | None = None
    factor: float | None = None
    temperature: float = 0.0
    seed: int = 0
    last: int | None = None  # number of the pass that settles everything
    trim: float | None = None  # ours: what is behind the block of a predicted end is dropped
    ends: tuple[int, ...] = ()
    refresh: int = 8
    passes: list[int] = field(default_factory=list)

    def run(self, prompt: list[int], answer: list[int]) -> list[int]:
        """`answer` has masks where it is open; up to the first of `ends`."""
        x = np.array([*prompt, *answer])
        open_ = x == self.mask
        open_[: len(prompt)] = False
        cached, noise = Cached(self.model, self.refresh), PhiloxNoise(self.seed)
        self.passes = cached.passes
        blocks = len(answer) // self.block_length
        start, end = len(prompt), len(prompt)
        while end < len(x) and not set(x[len(prompt) : end].tolist()) & set(self.ends):
            start, end = end, end + self.block_length
            masks, step = int(open_[start:end].sum()), 0
            each = self.steps // blocks
            while open_[start:end].any():
                settles = self.last is not None and len(self.passes) + 1 >= self.last
                stop = len(x) if self.cache == "prefix" or settles else end
                if self.cache == "delayed":
                    logits, first = cached.delayed(x, ~open_, step == 0), 0
                elif step == 0 or self.cache == "none" or (settles and self.cache == "dual"):
                    logits, first = cached.whole(x), 0
                else:
                    logits, first = cached.part(x, start, stop), start
                looks = settles or (self.trim is not None and step == 0)
                where = np.flatnonzero(open_ & (np.arange(len(x)) < (len(x) if looks else end)))
                scores = logits[where - first].double()
                p = scores.softmax(-1).numpy()
                noised = scores.numpy()
                if self.temperature > 0:
                    gumbel = noise.gumbel(len(where), noised.shape[1])(0, noised.shape[1])
                    noised = noised + self.temperature * gumbel
                best = noised.argmax(-1)
                confidence = p[np.arange(len(where)), best]
                order = np.argsort(-confidence, kind="stable")
                own = confidence[where < end]
                if not settles:
                    order = order[where[order] < end]
                if settles:
                    count = len(where)
                elif self.threshold is not None:
                    count = max(1, int((own >= self.threshold).sum()))
                elif self.factor is not None:
                    count = fast_dllm_factor(own.tolist(), self.factor)
                else:
                    count = masks // each + (step < masks % each)
                taken = order[:count]
                x[where[taken]] = best[taken]
                open_[where[taken]] = False
                if self.trim is not None and step == 0:
                    sure = [at for at, token, p in zip(where, best, confidence, strict=True)
                            if token in self.ends and p >= self.trim]  # fmt: skip
                    if sure:
                        block = (min(sure) - len(prompt)) // self.block_length
                        length = len(prompt) + (block + 1) * self.block_length
                        x, open_ = x[:length], open_[:length]
                        if cached.kept and self.cache != "delayed":
                            cached.kept = [(k[:, :, :length], v[:, :, :length]) for k, v in cached.kept]
                step += 1
                if self._ended(x[len(prompt) : end], open_[len(prompt) : end]):
                    break
        found = [int(token) for token in x[len(prompt) : end]]
        stop = next((i for i, token in enumerate(found) if token in self.ends), len(found))
        return found[: stop + 1]

    def _ended(self, tokens: np.ndarray, open_: np.ndarray) -> bool:
        """Whether nothing is open before the first of `ends`."""
        for token, is_open in zip(tokens.tolist(), open_.tolist(), strict=True):
            if is_open or token in self.ends:
                return not is_open
        return False


@dataclass
class DreamLoop:
    """The same of Dream, greedy. Scores are shifted by one, so with Fast-dLLM's caches the pass that begins a
    block commits its first token, if that is open, and no other. `alg` is "entropy" with a schedule,
    otherwise "maskgit_plus".
    """

    model: ReferenceModel
    cache: str
    mask: int
    block_length: int
    steps: int
    threshold: float | None = None
    last: int | None = None  # number of the pass that settles everything
    eps: float = 1e-3
    refresh: int = 4
    passes: list[int] = field(default_factory=list)

    def run(self, prompt: list[int], answer: list[int]) -> list[int]:
        """`answer` has masks where it is open."""
        x = np.array([*prompt, *answer])
        open_ = x == self.mask
        open_[: len(prompt)] = False
        cached = Cached(self.model, self.refresh)
        self.passes = cached.passes
        each = self.steps // (len(answer) // self.block_length)
        times = torch.linspace(1, self.eps, each + 1)
        for start in range(len(prompt), len(x), self.block_length):
            end, step, begun = start + self.block_length, 0, False
            while open_[start:end].any():
                settles = self.last is not None and len(self.passes) + 1 >= self.last
                own = np.flatnonzero(open_[:end])
                count = self._count(len(own), step, each, times)
                first = not begun and bool(open_[start]) and not settles and self.cache != "delayed"
                step += 1
                if not (first or settles or self.threshold is not None or count):
                    continue
                where = np.flatnonzero(open_) if settles else own[:1] if first else own
                if self.cache == "delayed":
                    settled = ~open_ & ~np.append(open_[1:], False)
                    rows = cached.delayed(x, settled, not begun)[np.maximum(where - 1, 0)]
                elif not begun or (settles and self.cache == "dual"):
                    rows = cached.whole(x)[where - 1]
                else:
                    rows = cached.part(x, start, end if self.cache == "dual" else len(x))[where - 1 - start]
                begun = True
                p = rows.double().softmax(-1).numpy()
                best = p.argmax(-1)
                score = (p * np.log(p + 1e-10)).sum(-1) if self.threshold is None else p.max(-1)
                if settles or first:
                    count = len(where)
                elif self.threshold is not None:
                    count = max(1, int((score >= self.threshold).sum()))
                taken = np.argsort(-score, kind="stable")[:count]
                x[where[taken]] = best[taken]
                open_[where[taken]] = False
        return [int(token) for token in x[len(prompt) :]]

    def _count(self, masks: int, step: int, steps: int, times: Tensor) -> int:
        share = 1 - times[step + 1] / times[step] if step + 1 < steps else torch.tensor(1.0)
        return int(masks * share)
