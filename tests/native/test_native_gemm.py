"""Products of the native core against numpy, bit for bit, on every instruction set of this machine."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.native_gemm import (
    CAddends,
    CMatrix,
    Floats,
    Gemm,
    Matrix,
    address,
    aligned,
    float_product,
    gemm,
    instruction_sets,
    mixed,
    product,
    random_matrix,
    random_table,
    rounded,
    table_of,
)
from support.native_testing import library

EXAMPLES = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # fmt: skip
ROWS = st.one_of(st.integers(1, 20), st.integers(21, 70))
OUTPUTS = st.integers(1, 200)
THREADS = st.sampled_from([1, 2, 3, 8])
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def stored_forms(draw: st.DrawFn) -> tuple[int, int, int]:
    """(bits, columns, group)."""
    if draw(st.booleans()):
        return 8, draw(st.one_of(st.integers(1, 70), st.integers(500, 1100))), 0
    group = draw(st.sampled_from([16, 32, 64, 128, 256]))
    return 4, group * draw(st.integers(1, max(3, 1100 // group))), group


@pytest.fixture(params=instruction_sets(), autouse=True)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    assert library().ekt_gemm_use(request.param.encode()) == 0
    yield request.param
    library().ekt_gemm_use(None)


def same(a: Floats, b: Floats) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def activations(rng: np.random.Generator, rows: int, columns: int) -> Floats:
    """With a gap between the rows."""
    return rng.standard_normal((rows, columns + 5), np.float32)[:, :columns]


def contiguous(x: Floats) -> Floats:
    return np.ascontiguousarray(x)


def addends(bias: Floats | None, residual: Floats | None) -> CAddends:
    return CAddends(address(bias), address(residual), 0 if residual is None else residual.strides[0] // 4)


def with_addends(y: Floats, bias: Floats | None, residual: Floats | None) -> Floats:
    y = y if bias is None else y + bias
    return y if residual is None else y + residual


@EXAMPLES
@given(SEEDS, ROWS, st.integers(1, 700), THREADS)
@example(0, 1, 1, 1)
def test_rows_are_rounded_to_int8(seed: int, rows: int, columns: int, threads: int) -> None:
    x = activations(np.random.default_rng(seed), rows, columns)
    x[0] = 0
    codes, scales = rounded(x)
    with gemm(threads) as g:
        got = g.quantize(x)
    assert got.view.stride % 64 == 0 and got.view.stride >= columns
    assert np.array_equal(got.codes[:, :columns], codes) and not got.codes[:, columns:].any()
    assert same(got.scales, scales) and np.array_equal(got.sums, codes.sum(axis=1))


def test_halves_are_rounded_to_even_codes() -> None:
    x = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -127]], np.float32)
    with gemm(1) as g:
        assert g.quantize(x).codes[0, :9].tolist() == [127, 0, 2, 2, 0, -2, -2, 126, -127]


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_reaches_the_output(value: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 40), np.float32)
    x[1, 17] = value
    matrix = random_matrix(rng, 70, 40, 8)
    with gemm(1) as g:
        q = g.quantize(x)
        y = g.rows("ekt_linear", 3, 70, matrix.view, q.view, tail=(CAddends(),))
    assert not q.codes[1].any() and not np.isfinite(q.scales[1])
    assert not np.isfinite(y[1]).any() and np.isfinite(y[[0, 2]]).all()


def test_tiny_and_huge_rows() -> None:
    x = np.array([[1e-42, -3e-39, 0], [3e38, -1e38, 1e-30]], np.float32)
    with gemm(1) as g:
        q = g.quantize(x)
    assert q.codes[:, :3].tolist() == [[0, 0, 0], [127, -42, 0]]
    assert q.scales[0] == 0 and q.scales[1] == np.float32(3e38) / np.float32(127)


@EXAMPLES
@given(SEEDS, ROWS, OUTPUTS, stored_forms(), THREADS, st.booleans(), st.booleans(), st.booleans())
@example(1, 256, 65, (8, 64, 0), 2, False, False, False)
@example(2, 300, 64, (4, 64, 16), 1, True, True, False)
def test_linear(
    seed: int, rows: int, outputs: int, form: tuple[int, int, int], threads: int, bias: bool, residual: bool,
    in_place: bool,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    bits, columns, group = form
    matrix = random_matrix(rng, outputs, columns, bits, group)
    x = activations(rng, rows, columns)
    b = rng.standard_normal(outputs, np.float32) if bias else None
    r = activations(rng, rows, outputs) if residual else None
    with gemm(threads) as g:
        q = g.quantize(x)
        y = g.rows("ekt_linear", rows, outputs, matrix.view, q.view, tail=(addends(b, r),))
        if in_place and r is not None:
            own = r.copy()
            g.call("ekt_linear", matrix.view, q.view, own, outputs, addends(b, own))
            assert same(own, y)
    codes, scales = rounded(x)
    assert same(contiguous(y), contiguous(with_addends(product(codes, scales, matrix), b, r)))


@EXAMPLES
@given(SEEDS, ROWS, OUTPUTS, stored_forms(), THREADS, st.booleans())
def test_linear_gated(
    seed: int, rows: int, outputs: int, form: tuple[int, int, int], threads: int, gelu: bool
) -> None:
    rng = np.random.default_rng(seed)
    bits, columns, group = form
    gate, up = (random_matrix(rng, outputs, columns, bits, group) for _ in range(2))
    x = activations(rng, rows, columns)

    def run(g: Gemm) -> Floats:
        q = g.quantize(x)
        return contiguous(g.rows("ekt_linear_gated", rows, outputs, gate.view, up.view, q.view, int(gelu)))

    with gemm(threads) as g:
        y = run(g)
        library().ekt_gemm_use(b"scalar")
        assert same(y, run(g))
    codes, scales = rounded(x)
    a = product(codes, scales, gate).astype(np.float64)
    b = product(codes, scales, up).astype(np.float64)
    u = 2 * np.sqrt(2 / np.pi) * (a + 0.044715 * a**3) if gelu else a
    with np.errstate(over="ignore"):
        expected = a / (1 + np.exp(-u)) * b
    # vector_math.h: relative to the result, and an absolute error of the activation far below zero.
    slack = 2e-7 * np.maximum(1, np.abs(a)) * np.abs(b)
    assert np.all(np.abs(y - expected) <= 4e-7 * np.abs(expected) + slack)


@EXAMPLES
@given(SEEDS, st.integers(1, 30), OUTPUTS, stored_forms(), THREADS, st.booleans(), st.booleans(),
       st.booleans())  # fmt: skip
@example(3, 260, 3, (8, 20, 0), 1, False, False, True)
def test_linear_float(
    seed: int, rows: int, outputs: int, form: tuple[int, int, int], threads: int, bias: bool, residual: bool,
    wide: bool,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    bits, columns, group = form
    matrix = random_matrix(rng, outputs, columns, 16 if wide else bits, group)
    x = activations(rng, rows, columns)
    b = rng.standard_normal(outputs, np.float32) if bias else None
    r = activations(rng, rows, outputs) if residual else None
    with gemm(threads) as g:
        stride = x.strides[0] // 4
        y = g.rows("ekt_linear_float", rows, outputs, matrix.view, x, stride, rows, tail=(addends(b, r),))
    expected = with_addends(float_product(x, matrix.values) * matrix.scales, b, r)
    assert same(contiguous(y), contiguous(expected))


@EXAMPLES
@given(SEEDS, ROWS, OUTPUTS, st.one_of(st.integers(1, 70), st.integers(500, 1100)), THREADS)
@example(4, 257, 65, 64, 2)
def test_table_scores(seed: int, rows: int, outputs: int, columns: int, threads: int) -> None:
    rng = np.random.default_rng(seed)
    table = random_table(rng, outputs, columns, 8)
    x = activations(rng, rows, columns)
    with gemm(threads) as g:
        q = g.quantize(x)
        z = g.rows("ekt_table_scores", rows, outputs, table.view, q.view)
    codes, scales = rounded(x)
    assert same(contiguous(z), product(codes, scales, table))


@EXAMPLES
@given(SEEDS, st.integers(1, 30), OUTPUTS, st.integers(1, 600), THREADS, st.sampled_from([8, 16]))
def test_table_scores_float(
    seed: int, rows: int, outputs: int, columns: int, threads: int, bits: int
) -> None:
    rng = np.random.default_rng(seed)
    table = random_table(rng, outputs, columns, bits)
    x = activations(rng, rows, columns)
    with gemm(threads) as g:
        z = g.rows("ekt_table_scores_float", rows, outputs, table.view, x, x.strides[0] // 4, rows)
    assert same(contiguous(z), float_product(x, table.values) * table.scales)


@EXAMPLES
@given(SEEDS, ROWS, st.one_of(st.integers(1, 100), st.integers(500, 2500)), OUTPUTS, THREADS,
       st.sampled_from([8, 8, 16]), st.sampled_from([0.0, 0.1, 1.0, None]),
       st.sampled_from([1.0, 0.5, 0.01, 0.0]))  # fmt: skip
@example(5, 257, 9, 65, 2, 8, None, 1.0)
@example(6, 2, 1025, 3, 1, 8, None, 1.0)
@example(7, 257, 1025, 65, 2, 8, 0.1, 1.0)
@example(8, 257, 2500, 65, 2, 8, 0.1, 0.01)
@example(9, 100, 2500, 65, 2, 16, None, 0.01)
def test_table_mix(
    seed: int,
    rows: int,
    table_rows: int,
    columns: int,
    threads: int,
    bits: int,
    fine_share: float | None,
    weighed: float,
) -> None:
    """A share of the rows takes two digits; None stands for all. A share of the tokens has a weight, in some
    of the rows: what is left out changes no bit.
    """
    rng = np.random.default_rng(seed)
    table = random_table(rng, table_rows, columns, bits)
    p = np.exp(4 * activations(rng, rows, table_rows))
    p[:, rng.random(table_rows) > weighed] = 0
    p[rng.random(p.shape) > weighed] = 0
    above = np.full(rows, -1, np.float32)
    if fine_share is not None:
        above = np.quantile(p, 1 - fine_share, axis=1).astype(np.float32)
        above[rng.random(rows) > fine_share] = np.inf
    y = rng.standard_normal((rows, columns), np.float32)
    with gemm(threads) as g:
        given = None if fine_share is None else above
        got = g.rows("ekt_table_mix", rows, columns, table.view, p, p.strides[0] // 4, rows, given, y=y)
    assert same(contiguous(got), mixed(y, p, table, above))
    # And as close to the product as promised, for every row of the table: half a step, or the whole digit.
    weights = p * table.scales.astype(np.float64)
    exact = weights @ table.values.astype(np.float64) + y
    one = weights.max(axis=1, keepdims=True) * np.where(above == -1, 1 / 65278, 1 / 127)[:, None]
    unit = one if bits == 8 else 0
    slack = 1e-5 * (np.abs(weights) @ np.abs(table.values) + np.abs(y))
    assert np.all(np.abs(got - exact) <= unit * np.abs(table.values).sum(axis=0) + slack)


def test_one_digit_keeps_the_sum_of_many_small_weights() -> None:
    """Each of them alone would be rounded to nothing."""
    p = np.full((3, 1024), 1e-3, np.float32)
    p[:, 5] = 1
    table = table_of(np.full((1024, 8), 100), np.ones(1024, np.float32))
    with gemm(2) as g:
        y = np.zeros((3, 8), np.float32)
        got = g.rows("ekt_table_mix", 3, 8, table.view, p, 1024, 3, np.full(3, 1, np.float32), y=y)
    np.testing.assert_allclose(got, 100 * p.sum(1, keepdims=True) * np.ones((1, 8)), rtol=0.01)


def test_rows_of_zeros_mix_to_nothing() -> None:
    rng = np.random.default_rng(7)
    table = random_table(rng, 70, 66, 8)
    y = rng.standard_normal((2, 66), np.float32)
    with gemm(1) as g:
        got = g.rows("ekt_table_mix", 2, 66, table.view, np.zeros((2, 70), np.float32), 70, 2, None, y=y)
    assert same(contiguous(got), y)


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_parts_of_a_matrix(bits: int) -> None:
    rng = np.random.default_rng(8)
    matrix = random_matrix(rng, 200, 96, bits, 32)
    x = rng.standard_normal((5, 96), np.float32)

    def run(g: Gemm, view: CMatrix) -> Floats:
        if bits == 16:
            return g.rows("ekt_linear_float", 5, view.rows, view, x, 96, 5, tail=(CAddends(),))
        return g.rows("ekt_linear", 5, view.rows, view, g.quantize(x).view, tail=(CAddends(),))

    with gemm(1) as g:
        whole = run(g, matrix.view)
        for first, count in ((0, 64), (64, 70), (128, 72)):
            part = CMatrix()
            library().ekt_matrix_rows(
                ctypes.byref(matrix.view), ctypes.c_int64(first), ctypes.c_int64(count), ctypes.byref(part)
            )
            assert np.array_equal(run(g, part), whole[:, first : first + count])
    part = CMatrix()
    refused = library().ekt_matrix_rows(
        ctypes.byref(matrix.view), ctypes.c_int64(32), ctypes.c_int64(8), ctypes.byref(part)
    )
    assert (refused == 0) == (bits == 16)


def test_extreme_weights_and_activations_stay_exact() -> None:
    """The largest sums that 32 bits must hold: every product of the same sign, 60,000 columns."""
    columns = 60000
    for code in (0, 255):
        codes = aligned(np.full((1, columns // 4, 64, 4), code, np.uint8))
        scales = np.ones(64, np.float32)
        view = CMatrix(1, columns, 8, 0, address(codes), None, address(scales))
        matrix = Matrix(np.full((1, columns), code - 128), scales[:1], view, ())
        for sign in (1, -1):
            x = np.full((2, columns), sign * 127, np.float32)
            x[1, ::2] *= -1
            with gemm(1) as g:
                y = g.rows("ekt_linear", 2, 1, view, g.quantize(x).view, tail=(CAddends(),))
            assert same(contiguous(y), product(x, np.ones(2, np.float32), matrix))


def test_shapes_that_do_not_fit_are_refused() -> None:
    rng = np.random.default_rng(9)
    matrix = random_matrix(rng, 10, 32, 8)
    y = np.zeros((1, 10), np.float32)
    with gemm(1) as g:
        q = g.quantize(np.ones((1, 31), np.float32))
        with pytest.raises(AssertionError, match="ekt_linear"):
            g.call("ekt_linear", matrix.view, q.view, y, 10, CAddends())
    assert not y.any()


def test_an_unknown_instruction_set_is_refused() -> None:
    assert library().ekt_gemm_use(b"abacus") != 0
