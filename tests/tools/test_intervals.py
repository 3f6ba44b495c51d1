"""Intervals of means and of medians."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgekit.tools.intervals import mean_interval, median_interval, student


@pytest.mark.parametrize(
    ("freedom", "confidence", "value"),
    [
        (1, 0.95, 12.7062),
        (2, 0.95, 4.3027),
        (3, 0.99, 5.8409),
        (10, 0.95, 2.2281),
        (29, 0.9, 1.6991),
        (120, 0.95, 1.9799),
    ],
)
def test_student_is_that_of_published_tables(freedom: int, confidence: float, value: float) -> None:
    assert student(freedom, confidence) == pytest.approx(value, abs=5e-5)


@pytest.mark.parametrize("freedom", [1, 2, 5, 8, 33, 1000])
def test_so_much_of_the_density_lies_within(freedom: int) -> None:
    t = np.linspace(0, student(freedom, 0.9), 200_001)
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    density = np.exp(scale - (freedom + 1) / 2 * np.log1p(t * t / freedom))
    assert 2 * np.trapezoid(density, t) == pytest.approx(0.9, abs=1e-8)


def test_the_mean_of_a_few(rng: np.random.Generator) -> None:
    assert mean_interval([1.0]) is None and mean_interval([2.0, 2.0]) == (2.0, 2.0)
    low, high = mean_interval([1.0, 2.0, 3.0]) or (0.0, 0.0)
    assert (low, high) == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-4)
    covered = 0
    for values in rng.normal(5.0, 2.0, (2000, 4)):
        low, high = mean_interval(values.tolist()) or (0.0, 0.0)
        covered += low <= 5.0 <= high
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize("count", [1, 5, 6, 7, 20, 51, 100])
def test_the_median_lies_between_the_narrowest_ranks_that_hold_it(count: int) -> None:
    """The ranks k and n + 1 - k hold it unless fewer than k of n coins show one side, or the other."""

    def holds(rank: int) -> float:
        return 1 - 2 * sum(math.comb(count, k) for k in range(rank)) / 2**count

    values = [float((7 * i) % count) if count % 7 else float(i) for i in range(count)]
    found = median_interval(values)
    if found is None:
        assert holds(1) < 0.95
        return
    low, high = (sorted(values).index(each) + 1 for each in found)
    assert low + high == count + 1
    assert holds(low) >= 0.95 > holds(low + 1)
