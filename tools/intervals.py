"""Intervals of shares, of means and medians, and of the difference between two shares on the same cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev


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


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """The interval of a mean, Student's; None of fewer than two values."""
    if len(values) < 2:
        return None
    half = student(len(values) - 1, confidence) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """The interval of a median between two of the values, whatever their distribution: as many lie below a
    median as heads fall of as many coins. None of too few values.
    """
    ordered, count = sorted(values), len(values)
    below, rank = 0.0, 0  # the chance that fewer than `rank` values lie below the median
    while (more := below + math.comb(count, rank) / 2**count) <= (1 - confidence) / 2:
        below, rank = more, rank + 1
    return (ordered[rank - 1], ordered[count - rank]) if rank else None


def student(freedom: int, confidence: float = 0.95) -> float:
    """How many standard errors to either side hold `confidence` of Student's distribution."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """The part of Student's distribution between -t and t: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan2(t, math.sqrt(freedom))
    odd, square = freedom % 2, math.cos(angle) ** 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for k in range(freedom // 2):
        total += term
        term *= square * (2 * k + 1 + odd) / (2 * k + 2 + odd)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def _quantile(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2)
