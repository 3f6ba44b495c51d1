"""Mixtures of experts for engines that run one expert at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgekit.runtime.engines.base import Arrays, Experts
from edgekit.runtime.errors import EngineFailed
from edgekit.runtime.sampling.types import Floats


def mix(
    x: Floats, index: np.ndarray, weight: Floats, experts: Experts, run: Callable[[Floats, Arrays], Floats]
) -> Floats:
    """sum_j weight[t, j] * expert_{index[t, j]}(x[t]) for x [T, H], index and weight [T, k].

    `run` applies an expert's tensors to rows. Experts come in any order; what they say of a token is added
    in the order of expert index.

    Raises EngineFailed: the router chose an expert that the layer does not have.
    """
    parts = np.empty((*index.shape, x.shape[1]), np.float32)
    filled = 0
    for e, tensors in experts:
        token, slot = np.nonzero(index == e)
        if token.size:
            parts[token, slot] = run(x[token], tensors) * weight[token, slot, None]
            filled += token.size
    if filled != index.size:
        raise EngineFailed(
            f"the router chose experts from {index.min()} to {index.max()}, which the layer does not have; "
            "export the bundle again"
        )
    order = np.argsort(index, axis=1, kind="stable")[..., None]
    parts = np.take_along_axis(parts, order, 1)
    total = parts[:, 0].copy()
    for j in range(1, parts.shape[1]):
        total += parts[:, j]
    return total
