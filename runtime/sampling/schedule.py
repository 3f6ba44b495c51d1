"""How many and which positions a denoising step settles: the arithmetic that the families share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgekit.runtime.sampling.types import Floats, Ids


def linear_temperature(remaining: int, steps: int, t_min: float, t_max: float) -> float:
    """T = t_min + (t_max - t_min) * remaining / steps, remaining = steps .. 1.

    In float32 like the published procedure: float64 differs by one ulp on a quarter of the steps, which is
    enough to flip a sample.
    """
    fraction = np.float32(remaining) / np.float32(steps)
    return float(np.float32(t_min) + np.float32(t_max - t_min) * fraction)


def accept_by_entropy(entropy: Floats, bound: float) -> NDArray[np.bool_]:
    """Entropy-bounded acceptance (arXiv 2505.24857): the positions, lowest entropy first, whose entropies
    summed
    *before* the position do not exceed `bound` nats. bool [T]; the lowest entropy is always accepted."""
    order = np.argsort(entropy, kind="stable")
    ascending = entropy[order]
    cumulative = np.cumsum(ascending, dtype=np.float64).astype(np.float32)
    accepted = np.empty(entropy.shape, dtype=np.bool_)
    accepted[order] = cumulative - ascending <= np.float32(bound)
    return accepted


def transfer_counts(masked: int, steps: int) -> list[int]:
    """How many of `masked` positions each of `steps` steps commits: as even as possible, the larger ones
    first."""
    base, extra = divmod(masked, steps)
    return [base + (step < extra) for step in range(steps)]


def count_above_threshold(confidence: NDArray[np.float64], threshold: float) -> int:
    """Positions whose confidence reaches the threshold; never less than one (Fast-dLLM)."""
    return max(1, int(np.count_nonzero(confidence >= threshold)))


def count_by_factor(confidence: NDArray[np.float64], factor: float) -> int:
    """How many of the most confident positions a step commits (Fast-dLLM's `get_transfer_index_dynamic`).

    The k-th highest confidence passes at 1 - factor / (k + 1), the first above -1. The count is that of the
    positions before the first failure, but never less than one; and where only the last position fails,
    which is so for one of two, it is committed too."""
    descending = np.sort(confidence)[::-1]
    needed = 1 - factor / (np.arange(1, descending.shape[0] + 1) + 1)
    needed[0] = -1
    fails = np.flatnonzero(descending < needed)
    passing = int(fails[0]) if fails.size else descending.shape[0]
    return passing + (passing in (0, descending.shape[0] - 1))


def most_confident(confidence: NDArray[np.floating], count: int) -> Ids:
    """Indices of the `count` highest values, highest first, ties to the lower index. int64 [count]."""
    return np.argsort(-confidence, kind="stable")[:count].astype(np.int64)


def timesteps(steps: int, eps: float) -> Floats:
    """steps + 1 values from 1 down to eps, float32, evaluated from both ends towards the middle like
    torch."""
    stride = (np.float32(eps) - np.float32(1)) / np.float32(steps)
    index = np.arange(steps + 1)
    from_start = np.float32(1) + stride * index.astype(np.float32)
    from_end = np.float32(eps) - stride * (steps - index).astype(np.float32)
    return np.where(index < (steps + 1) // 2, from_start, from_end).astype(np.float32)


def transfer_probability(times: Floats, step: int) -> np.float32:
    """Share of the masked positions that step `step` (0-based) unmasks: 1 - s/t, and 1 at the last step."""
    if step == times.shape[0] - 2:
        return np.float32(1)
    return np.float32(1) - times[step + 1] / times[step]


def answer_end(ids: Ids, open_: NDArray[np.bool_], end_ids: Sequence[int]) -> int | None:
    """Length of the answer up to and including its first end token, once nothing before that token is open.

    ids int64 [T], open_ bool [T] (positions that are still masked). None while the end is not settled.
    """
    ends = np.flatnonzero(np.isin(ids, list(end_ids)) & ~open_)
    if not ends.size or open_[: ends[0]].any():
        return None
    return int(ends[0]) + 1
