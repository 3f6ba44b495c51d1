"""The core's e^x, log x and sums, against Python's own."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.native_floats import pointer
from support.native_testing import library


def exp(x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    library().ekt_portable_exp(pointer(x), ctypes.c_int64(x.size), pointer(y))
    return y


def total(values: list[float]) -> float:
    x = np.array(values, dtype=np.float32)
    function = library().ekt_portable_total
    function.restype = ctypes.c_double
    return float(function(pointer(x), ctypes.c_int64(x.size)))


def test_exponentials_are_the_nearest_float_or_its_neighbour(rng: np.random.Generator) -> None:
    x = np.concatenate([rng.uniform(-87, 0, 20000), rng.normal(0, 1, 5000), [0, 88]]).astype(np.float32)
    exact = np.array([math.exp(value) for value in x.tolist()])
    # Half a unit in the last place is what rounding itself costs.
    assert (np.abs(exp(x) - exact) <= 0.50001 * np.spacing(exact.astype(np.float32))).all()


def test_exponentials_end_at_zero() -> None:
    found = exp(np.array([0, -87, -87.00001, -np.inf], dtype=np.float32))
    assert found[0] == 1 and found[1] > 0 and (found[2:] == 0).all()


def test_exponentials_of_what_no_pass_gives_are_defined() -> None:
    found = exp(np.array([89, 700, 701, 3e38, np.inf, np.nan], dtype=np.float32))
    assert (found[:5] == np.inf).all() and np.isnan(found[5])


def test_logarithms_are_within_two_units_in_the_last_place(rng: np.random.Generator) -> None:
    special = [1.0, 2.0**-54, 1 - 2.0**-53, 1e-10]
    x = np.concatenate([rng.uniform(0, 1, 20000), np.exp(rng.uniform(-300, 300, 20000)), special])
    found = np.empty_like(x)
    library().ekt_portable_log(pointer(x), ctypes.c_int64(x.size), pointer(found))
    exact = np.array([math.log(value) for value in x.tolist()])
    assert (np.abs(found - exact) <= 2 * np.spacing(np.abs(exact))).all()


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=300))
def test_totals_run_from_left_to_right(values: list[float]) -> None:
    expected = 0.0
    for value in values:
        expected += value
    assert total(values) == expected


@pytest.mark.parametrize("count", [100, 9000, 100_001])
def test_totals_of_long_rows_do_too(count: int, rng: np.random.Generator) -> None:
    values = rng.standard_normal(count, dtype=np.float32).tolist()
    expected = 0.0
    for value in values:
        expected += value
    assert total(values) == expected
