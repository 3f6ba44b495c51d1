"""Operations over random shapes and arguments, against coremltools' value inference and numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from mil_programs import Array, Case, inferred

from edgekit.runtime.checks.mil import covered_ops
from edgekit.runtime.checks.mil.ops.registry import Call
from edgekit.runtime.checks.mil.ops.special import erf
from edgekit.runtime.checks.mil.rows import ArrayRows
from edgekit.runtime.checks.mil.types import FP32

SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)


def run(op: str, ios: int = 18, **arguments: Any) -> Array:
    entry = covered_ops()[op]
    result: Array = entry.run(*[Call(ios - 9)] * entry.takes_call, **arguments)
    return np.asarray(result)


def numbers(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4), st.integers(0, 99),
       st.sampled_from(["add", "mul", "maximum", "less", "floor_div"]))  # fmt: skip
def test_binary_operations_broadcast(shapes: Any, seed: int, op: str) -> None:
    x, y = (numbers(shape, seed + i) for i, shape in enumerate(shapes.input_shapes))
    assume(x.ndim and y.ndim)
    (expected,) = inferred(Case(op, {"x": x, "y": y}), 18)
    np.testing.assert_array_equal(run(op, x=x, y=y), expected)


@st.composite
def slices(draw: st.DrawFn) -> tuple[tuple[int, ...], dict[str, Array]]:
    shape = draw(SHAPES)
    rank = len(shape)
    bounds = [st.integers(-size, size) for size in shape]
    masks = st.lists(st.booleans(), min_size=rank, max_size=rank)
    arguments = {
        "begin": np.array([draw(st.integers(-size, size - 1)) for size in shape], np.int32),
        "end": np.array([draw(bound) for bound in bounds], np.int32),
        "stride": np.array([draw(st.sampled_from([1, 2, 3, -1, -2])) for _ in shape], np.int32),
        "begin_mask": np.array(draw(masks)),
        "end_mask": np.array(draw(masks)),
        "squeeze_mask": np.array(draw(masks)) & (rank > 1),
    }
    return shape, arguments


@given(slices())
def test_slices_are_those_of_coremltools(drawn: tuple[tuple[int, ...], dict[str, Array]]) -> None:
    shape, arguments = drawn
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    found = run("slice_by_index", x=x, **arguments)
    # coremltools refuses some empty slices, and evaluates a squeezed axis that is empty.
    assume(found.size and not arguments["squeeze_mask"].all())
    try:
        (expected,) = inferred(Case("slice_by_index", {"x": x}, arguments), 18)
    except ValueError:
        assume(False)
    np.testing.assert_array_equal(found, expected)


@given(slices())
def test_an_update_is_read_back_by_the_same_slice(drawn: tuple[tuple[int, ...], dict[str, Array]]) -> None:
    shape, arguments = drawn
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    part = run("slice_by_index", x=x, **arguments)
    changed = run("slice_update", x=x, update=-1 - part, **arguments)
    np.testing.assert_array_equal(run("slice_by_index", x=changed, **arguments), -1 - part)
    assert (changed != x).sum() == part.size and x.min() == 0


@given(SHAPES, st.data(), st.booleans(), st.sampled_from(["reduce_sum", "reduce_max", "reduce_log_sum_exp"]))
def test_reductions_over_any_axes(shape: tuple[int, ...], data: st.DataObject, keep: bool, op: str) -> None:
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    axes = [axis - data.draw(st.sampled_from([0, len(shape)])) for axis in axes]
    x = numbers(shape, 7)
    (expected,) = inferred(Case(op, {"x": x}, {"axes": axes, "keep_dims": keep}), 18)
    found = run(op, x=x, axes=np.array(axes), keep_dims=keep)
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@given(SHAPES, st.data())
def test_gather_along_any_axis(shape: tuple[int, ...], data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    indices = data.draw(hnp.arrays(np.int32, hnp.array_shapes(max_dims=2, max_side=4),
                                   elements=st.integers(0, shape[axis] - 1)))  # fmt: skip
    x = numbers(shape, 3)
    (expected,) = inferred(Case("gather", {"x": x, "indices": indices}, {"axis": axis}), 18)
    np.testing.assert_array_equal(run("gather", x=ArrayRows(x, FP32), indices=indices, axis=axis), expected)


@given(st.floats(-8, 8, width=32) | st.sampled_from([np.inf, -np.inf, np.nan, 1e-30, -0.0]))
def test_erf_is_that_of_the_standard_library(value: float) -> None:
    np.testing.assert_allclose(erf(np.array(value)), math.erf(value), rtol=1e-12, atol=1e-300)
