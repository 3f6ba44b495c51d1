"""Mixtures of experts whose rows stay on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgekit.runtime.engines.mixture import wrong_choice


class TensorMixture:
    """As `engines.mixture.Mixture`, on tensors. Rows are sorted by expert once, so that several experts have
    theirs one behind the other; how many each has is all that the processor learns.
    """

    def __init__(self, x: Tensor, index: Tensor, weight: Tensor, experts: int, advice: str) -> None:
        """For x [T, H], index and weight [T, k]. Raises EngineFailed, with `advice`: the router chose an
        expert that the layer does not have.
        """
        flat = index.reshape(-1).long()
        known = (flat >= 0) & (flat < experts)
        counts = torch.zeros(experts + 1, dtype=torch.int64, device=flat.device)
        counts.index_add_(0, torch.where(known, flat, experts), torch.ones_like(flat))
        found = counts.cpu().numpy()
        if found[-1]:
            raise wrong_choice(int(flat.min()), int(flat.max()), experts, advice)
        self._x, self._index, self._weight = x, index, weight.reshape(-1, 1)
        self._order = torch.sort(flat, stable=True).indices
        self._parts = torch.empty(len(flat), x.shape[1], dtype=torch.float32, device=x.device)
        #: Rows of each expert, int64 [experts].
        self.counts: np.ndarray = found[:-1].copy()
        self._starts = np.concatenate(([0], np.cumsum(self.counts)))

    def add_together(
        self, experts: Sequence[tuple[int, Any]], run: Callable[[Tensor, list[int], list[Any]], Tensor]
    ) -> None:
        """Apply experts, each with its weights, by what takes rows, how many are of each, and weights."""
        wanted = [(e, w) for e, w in sorted(experts, key=lambda each: each[0]) if self.counts[e]]
        if not wanted:
            return
        spans = [self._order[self._starts[e] : self._starts[e + 1]] for e, _ in wanted]
        places = torch.cat(spans) if len(spans) > 1 else spans[0]
        x = self._x[places // self._index.shape[1]]
        made = run(x, [len(each) for each in spans], [weights for _, weights in wanted])
        self._parts.index_copy_(0, places, made * self._weight[places])

    def total(self) -> Tensor:
        """The weighted sum [T, H], once every expert that has rows was added."""
        order = torch.sort(self._index, dim=1, stable=True).indices[..., None]
        parts = self._parts.view(*self._index.shape, -1)
        parts = parts.gather(1, order.expand(-1, -1, parts.shape[2]))
        total = parts[:, 0].clone()
        for j in range(1, parts.shape[1]):
            total += parts[:, j]
        return total
