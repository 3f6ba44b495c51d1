"""Acceptance rules as their papers state them, and a plain loop of a masked family that follows them.

- threshold, factor: Fast-dLLM, arXiv 2505.22618.
- entropy_bound: EB-Sampler, arXiv 2505.24857: in the order of an error proxy, the largest set whose entropies
  but the largest one do not exceed the bound together.
- persistence: arXiv 2606.16908 (LESS) and 2511.05664 (KLASS): confident, the same token in the steps before,
  a distribution that has changed little.
- early_commit: arXiv 2508.19982 (Prophet): all that is left at once when the gaps between the two best tokens
  are wide.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from support.fake_denoiser import FakeDenoiser


def fast_dllm_factor(confidence: list[float], factor: float) -> int:
    """How many of the most confident positions to take, as its authors wrote it: thresholds by rank, -1 for
    the first. The index stays at the first rank that fails or, where none does, at the last; the count is the
    index, at the first and at the last rank one more."""
    ordered = sorted(confidence, reverse=True)
    thresholds = [-1.0] + [1 - factor / (rank + 1) for rank in range(2, len(ordered) + 1)]
    index = 0
    while index < len(ordered) - 1 and ordered[index] >= thresholds[index]:
        index += 1
    return index + 1 if index in (0, len(ordered) - 1) else index


def entropy_bounded(entropies: list[float], bound: float) -> int:
    """The largest k for which the first k of the order stay within the bound."""
    sizes = range(1, len(entropies) + 1)
    return max((k for k in sizes if sum(entropies[:k]) - max(entropies[:k]) <= bound), default=1)


class Loop:
    """Denoising by rules on full scores in float64, block by block, with the best token of each row."""

    def __init__(self, model: FakeDenoiser, options: dict[str, Any], shift: bool) -> None:
        self.model, self.options, self.shift = model, SimpleNamespace(**options), shift
        self.history: dict[int, list[tuple[int, float]]] = {}
        self.forwards = 0

    def run(self, prompt: list[int], canvas: list[int] | None = None) -> list[int]:
        o = self.options
        mask, length = o.mask_token_id, o.max_new_tokens
        x = np.array([*prompt, *(canvas or [mask] * length)])
        open_ = x == mask
        open_[: len(prompt)] = False
        block = getattr(o, "block_length", None) or length
        for end in range(len(prompt) + block, len(x) + 1, block):
            while open_[end - block : end].any():
                self._step(x, open_, end)
        return x[len(prompt) :].tolist()

    def _step(self, x: np.ndarray, open_: np.ndarray, end: int) -> None:
        o = self.options
        scores = torch.from_numpy(self.model.scores(x)).double()
        if self.shift:
            scores = torch.cat([scores[:1], scores[:-1]])
        self.forwards += 1
        everything = np.flatnonzero(open_)
        p = scores.softmax(-1).numpy()
        two = np.sort(p, -1)[:, :-3:-1]
        margin, best, top = two[:, 0] - two[:, 1], p.argmax(-1), p.max(-1)
        entropy = -(p * np.log(p)).sum(-1)
        if o.early_commit is not None and (margin[everything] > o.early_commit).all():
            x[everything], open_[everything] = best[everything], False
            return
        where = everything[everything < end]
        looked_at = everything if o.early_commit is not None else where
        for i in looked_at:
            self.history.setdefault(int(i), []).append((int(best[i]), float(top[i])))
        order_by = {"entropy": -entropy, "topk_margin": margin}.get(getattr(o, "alg", ""), top)
        order = sorted(where.tolist(), key=lambda i: -order_by[i])
        taken: set[int] = set()
        if o.threshold is not None:
            taken |= {i for i in order if top[i] >= o.threshold}
        if o.margin is not None:
            taken |= {i for i in order if margin[i] > o.margin}
        if o.factor is not None:
            sure = sorted(order, key=lambda i: -top[i])
            taken |= set(sure[: fast_dllm_factor([top[i] for i in order], o.factor)])
        if o.entropy_bound is not None:
            taken |= set(order[: entropy_bounded([entropy[i] for i in order], o.entropy_bound)])
        if o.persistence is not None:
            taken |= {i for i in order if self._persists(i) and top[i] >= o.persistent_threshold}
        for i in taken or {order[0]}:
            x[i], open_[i] = best[i], False

    def _persists(self, position: int) -> bool:
        past = self.history[position][-1 - self.options.persistence :]
        if len(past) <= self.options.persistence or len({token for token, _ in past}) > 1:
            return False
        most = self.options.stability
        return most is None or all(abs(b - a) <= most for (_, a), (_, b) in zip(past, past[1:], strict=False))
