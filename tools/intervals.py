"""Intervals of shares, and of the difference between two shares that were measured on the same cases."""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson(right: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """The score interval of a share: `right` of `count` (at least 1) independent trials.

    Wilson, Probable inference, the law of succession, and statistical inference, J. Am. Stat. Assoc. 22
    (1927).
    """
    z = _quantile(confidence)
    share, spread = right / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread * spread / 4) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def paired_difference(gained: int, lost: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of the change of a share over `count` paired cases, of which `gained` became right and
    `lost` became wrong.

    Agresti and Min, Simple improved confidence intervals for comparing matched proportions, Statistics in
    Medicine 24 (2005): Wald's interval after half a case is added to each of the four outcomes.
    """
    z, a, b, n = _quantile(confidence), gained + 0.5, lost + 0.5, count + 2
    middle = (a - b) / n
    half = z * math.sqrt(a + b - (a - b) ** 2 / n) / n
    return max(-1.0, middle - half), min(1.0, middle + half)


def mcnemar(gained: int, lost: int) -> float:
    """The probability that chance alone would split the changed cases at least so unevenly, to either side:
    the exact test of McNemar, Psychometrika 12 (1947).
    """
    changed = gained + lost
    tail = sum(math.comb(changed, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**changed)


def _quantile(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2)
