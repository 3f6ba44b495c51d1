"""e^x, log x and sums from single operations, against Python's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.runtime.sampling import portable


def test_exponentials_are_the_nearest_float_or_its_neighbour(rng: np.random.Generator) -> None:
    x = np.concatenate([rng.uniform(-87, 0, 20000), rng.normal(0, 1, 5000), [0, 88]]).astype(np.float32)
    exact = np.array([math.exp(value) for value in x.tolist()])
    found = portable.exp(x)
    assert found.dtype == np.float32 and found.shape == x.shape
    # Half a unit in the last place is what rounding itself costs.
    assert (np.abs(found - exact) <= 0.50001 * np.spacing(exact.astype(np.float32))).all()


def test_exponentials_end_at_zero() -> None:
    x = np.array([[0, -87], [-87.00001, -np.inf]], dtype=np.float32)
    found = portable.exp(x)
    assert found.shape == (2, 2) and found[0, 0] == 1 and found[0, 1] > 0
    assert (found[1] == 0).all()


def test_logarithms_are_within_two_units_in_the_last_place(rng: np.random.Generator) -> None:
    x = np.concatenate(
        [
            rng.uniform(0, 1, 20000),
            np.exp(rng.uniform(-300, 300, 20000)),
            [1.0, 2.0**-54, 1 - 2.0**-53, 1e-10],
        ]
    )
    exact = np.array([math.log(value) for value in x.tolist()])
    found = portable.log(x)
    assert (np.abs(found - exact) <= 2 * np.spacing(np.abs(exact))).all()
    assert portable.log(x.reshape(2, -1)).shape == (2, x.size // 2)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=300))
def test_totals_run_from_left_to_right(values: list[float]) -> None:
    expected = 0.0
    for value in values:
        expected += value
    x = np.array(values, dtype=np.float32)
    assert float(portable.total(x)) == expected
    assert portable.total(np.stack([x, x])).tolist() == [expected, expected]


@pytest.mark.parametrize("count", [100, 9000, 100_001])
def test_totals_of_long_rows_do_too(count: int, rng: np.random.Generator) -> None:
    # Long enough for the buffers in which numpy converts types.
    x = rng.standard_normal(count, dtype=np.float32)
    expected = 0.0
    for value in x.tolist():
        expected += value
    assert float(portable.total(x)) == expected
