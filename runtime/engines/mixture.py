"""Mixtures of experts for engines that run one expert at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from edgekit.runtime.errors import EngineFailed
from edgekit.runtime.sampling.types import Floats, Ids


class Mixture:
    """sum_j weight[t, j] * expert_{index[t, j]}(x[t]) for x [T, H], index and weight [T, k].

    Experts come in any order; what they say of a row is added in the order of expert index.
    """

    def __init__(
        self,
        x: Floats,
        index: np.ndarray,
        weight: Floats,
        experts: int,
        advice: str = "export the bundle again",
    ) -> None:
        """Raises EngineFailed, with `advice`: the router chose an expert that the layer does not have."""
        if index.size and not (index.min() >= 0 and index.max() < experts):
            raise wrong_choice(int(index.min()), int(index.max()), experts, advice)
        self._x, self._index, self._weight = x, index, weight
        self._parts = np.empty((*index.shape, x.shape[1]), np.float32)
        #: Rows of each expert, int64 [experts].
        self.counts: Ids = np.bincount(index.ravel(), minlength=experts).astype(np.int64)

    def add(self, expert: int, run: Callable[[Floats], Floats]) -> None:
        """Apply an expert to its rows by `run`."""
        token, slot = np.nonzero(self._index == expert)
        if token.size:
            self._parts[token, slot] = run(self._x[token]) * self._weight[token, slot, None]

    def add_together(
        self, experts: Sequence[tuple[int, Any]], run: Callable[[Floats, list[int], list[Any]], Floats]
    ) -> None:
        """Apply experts, each with its weights, by what takes rows, how many are of each, and weights."""
        for expert, weights in experts:
            self.add(expert, partial(_alone, run, weights))

    def total(self) -> Floats:
        """The weighted sum [T, H], once every expert that has rows was added."""
        order = np.argsort(self._index, axis=1, kind="stable")[..., None]
        parts = np.take_along_axis(self._parts, order, 1)
        total = parts[:, 0].copy()
        for j in range(1, parts.shape[1]):
            total += parts[:, j]
        return total


def _alone(run: Callable[[Floats, list[int], list[Any]], Floats], weights: Any, x: Floats) -> Floats:
    return run(x, [len(x)], [weights])


def wrong_choice(lowest: int, highest: int, experts: int, advice: str) -> EngineFailed:
    """The error of a router that chose experts that its layer does not have."""
    return EngineFailed(
        f"the router chose experts from {lowest} to {highest}, the layer has {experts}; {advice}"
    )
