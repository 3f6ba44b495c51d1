"""Element-wise and row-wise operations of the native core against numpy and torch in float64, on every
instruction set of this machine; all of them must return the same bits."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.native_floats import (
    INSTRUCTION_SETS,
    Floats,
    guarded,
    pointer,
    pool,
    rows_call,
    unguarded,
    use,
)
from support.native_testing import library

from edgekit.export import ops

EPSILON = 2.0**-24
COLUMNS = st.one_of(st.integers(1, 40), st.integers(41, 300))


@pytest.fixture(params=INSTRUCTION_SETS, scope="module", autouse=True)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    if not use(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    use(None)


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def int64(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)


def same_bits(a: NDArray[np.generic], b: NDArray[np.generic]) -> bool:
    return a.shape == b.shape and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def ulps(got: Floats, expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distance in units in the last place of the expected value."""
    return np.abs(got - expected) / np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)


def test_unknown_instruction_set_is_refused(instruction_set: str) -> None:
    assert not use("avx1024")
    assert not use("")
    assert use(instruction_set)


def rms_norm(x: Floats, weight: Floats | None, eps: float, **options: int) -> Floats:
    return rows_call("ekt_rms_norm", x, pointer(weight), ctypes.c_float(eps), **options)


@given(COLUMNS, st.integers(1, 5), st.integers(1, 4), st.booleans(), st.integers(0, 2**32))
@example(4096, 2, 1, True, 0)
@example(2816, 1, 3, False, 1)
@settings(deadline=None)
def test_rms_norm(columns: int, positions: int, heads: int, weighted: bool, seed: int) -> None:
    base = normal(seed, positions, heads * columns) * np.float32(3)
    x = base.reshape(1, positions, heads, columns).transpose(0, 2, 1, 3)
    weight = normal(seed + 1, columns) if weighted else None
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + np.float32(1e-6))
    if weight is not None:
        expected = expected * weight
    got = rms_norm(x, weight, 1e-6)
    assert ulps(got, expected).max() <= 4
    assert same_bits(rms_norm(x, weight, 1e-6, threads=3), got)
    in_place = np.ascontiguousarray(x)
    assert same_bits(rms_norm(in_place, weight, 1e-6, in_place=True), got)


@given(st.integers(1, 40), st.integers(0, 20), st.integers(1, 6), st.integers(1, 4), st.integers(0, 2**32))
@settings(deadline=None)
def test_rope_equals_the_reference_operator(
    half: int, rest: int, positions: int, heads: int, seed: int
) -> None:
    x = normal(seed, 1, positions, heads, 2 * half + rest).transpose(0, 2, 1, 3)
    cos, sin = normal(seed + 1, positions, half), normal(seed + 2, positions, half)
    expected = ops.rope(torch.from_numpy(x), torch.from_numpy(cos), torch.from_numpy(sin)).numpy()
    arguments = (pointer(cos), pointer(sin), int64(half))
    assert same_bits(rows_call("ekt_rope", x, *arguments), expected)
    assert same_bits(rows_call("ekt_rope", x, *arguments, threads=2), expected)
    assert same_bits(rows_call("ekt_rope", x.copy("K"), *arguments, in_place=True), expected)


def gated_act(gate: Floats, up: Floats, kind: str, threads: int = 1, in_place: bool = False) -> Floats:
    rows, columns = gate.shape
    memory = guarded(gate.size)
    out = gate if in_place else memory[: gate.size].reshape(rows, columns)
    strides = [int64(a.strides[0] // 4) for a in (gate, up, out)]
    library().ekt_gated_act(
        pool(threads),
        *(pointer(gate), strides[0], pointer(up), strides[1], int64(rows), int64(columns)),
        *(int(kind == "gelu_tanh"), pointer(out), strides[2]),
    )
    unguarded(memory)
    return out


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@given(COLUMNS, st.integers(1, 5), st.integers(0, 2**32))
@example(12288, 3, 0)
@settings(deadline=None)
def test_gated_act(kind: str, columns: int, rows: int, seed: int) -> None:
    both = normal(seed, rows, 2 * columns) * np.float32(4)
    gate, up = both[:, :columns], both[:, columns:]
    wide = torch.from_numpy(both).double()
    expected = ops.activation(wide[:, :columns], kind).numpy() * up
    got = gated_act(gate, up, kind)
    # A unit of the activation's own size grows with its argument where the result is nearly 0.
    tolerance = 8 * EPSILON * (np.abs(expected) * (1 + np.abs(gate)) + 1e-6)
    assert (np.abs(got - expected) <= tolerance).all()
    assert same_bits(gated_act(gate, up, kind, threads=3), got)
    assert same_bits(gated_act(gate.copy(), up, kind, in_place=True), got)


def softmax(x: Floats, threads: int = 1, in_place: bool = False) -> Floats:
    memory = guarded(x.size)
    out = x if in_place else memory[: x.size].reshape(x.shape)
    library().ekt_softmax(pool(threads), pointer(x), int64(x.shape[0]), int64(x.shape[1]), pointer(out))
    unguarded(memory)
    return out


@given(COLUMNS, st.integers(1, 5), st.sampled_from([0.1, 1.0, 20.0]), st.integers(0, 2**32))
@settings(deadline=None)
def test_softmax(columns: int, rows: int, spread: float, seed: int) -> None:
    x = normal(seed, rows, columns) * np.float32(spread)
    x[0, 0] = -1e30 if columns > 1 else 0
    wide = x.astype(np.float64)
    shifted = wide - wide.max(-1, keepdims=True)
    expected = np.exp(shifted) / np.exp(shifted).sum(-1, keepdims=True)
    got = softmax(x)
    # The difference to the maximum is rounded before the exponential.
    tolerance = EPSILON * expected * (12 + np.minimum(np.abs(shifted), 100))
    assert (np.abs(got - expected) <= tolerance + 1e-37).all()
    assert columns == 1 or got[0, 0] == 0
    assert same_bits(softmax(x, threads=2), got)
    assert same_bits(softmax(x.copy(), in_place=True), got)


def test_softmax_shows_what_is_not_finite() -> None:
    x = np.zeros((3, 37), np.float32)
    x[0, 5], x[1, 36], x[2, 0] = np.nan, np.inf, -np.inf
    got = softmax(x)
    assert np.isnan(got[0]).all() and np.isnan(got[1]).any()
    assert got[2, 0] == 0 and np.isfinite(got[2]).all()


@given(COLUMNS, st.integers(1, 5), st.integers(1, 12), st.integers(1, 50), st.integers(0, 2**32))
@example(128, 256, 8, 1000, 0)
@settings(deadline=None)
def test_topk_keeps_the_lower_index_of_ties(columns: int, rows: int, k: int, kinds: int, seed: int) -> None:
    k = min(k, columns)
    x = np.random.default_rng(seed).integers(0, kinds, (rows, columns)).astype(np.float32)
    order = np.argsort(-x, axis=-1, kind="stable")[:, :k]
    for threads in (1, 3):
        values, indices = guarded(rows * k), guarded(rows * k, np.int64)
        numbers = (int64(rows), int64(columns), int64(k))
        library().ekt_topk(pool(threads), pointer(x), *numbers, pointer(values), pointer(indices))
        assert np.array_equal(unguarded(indices).reshape(rows, k), order)
        assert np.array_equal(unguarded(values).reshape(rows, k), np.take_along_axis(x, order, -1))


def test_topk_puts_nan_first_as_torch_does() -> None:
    x = np.array([[1, np.nan, 3, np.inf, 2, -np.inf]], np.float32)
    expected = torch.topk(torch.from_numpy(x), 4)
    values, indices = np.empty((1, 4), np.float32), np.empty((1, 4), np.int64)
    numbers = (int64(1), int64(6), int64(4))
    library().ekt_topk(pool(1), pointer(x), *numbers, pointer(values), pointer(indices))
    assert np.array_equal(values, expected.values.numpy(), equal_nan=True)
    assert np.array_equal(indices, expected.indices.numpy())


@pytest.mark.parametrize("count", [0, 1, 7, 16, 33, 16384, 40001])
def test_arithmetic_is_that_of_numpy(count: int) -> None:
    a, b, factor = normal(1, count), normal(2, count), np.float32(0.3)
    for threads in (1, 3):
        for function, second, expected in (
            ("ekt_add", pointer(b), a + b),
            ("ekt_multiply", pointer(b), a * b),
            ("ekt_scale", ctypes.c_float(factor), a * factor),
        ):
            memory = guarded(count)
            getattr(library(), function)(pool(threads), pointer(a), second, int64(count), pointer(memory))
            assert same_bits(unguarded(memory), expected)


def test_every_bfloat16_is_widened() -> None:
    halves = np.arange(2**16, dtype=np.uint16)
    memory = guarded(halves.size)
    library().ekt_widen(pointer(halves), int64(halves.size), pointer(memory))
    # As bits: both sides keep what a NaN carries.
    assert same_bits(unguarded(memory), halves.astype(np.uint32) << 16)


def exp_array(x: Floats) -> Floats:
    memory = guarded(x.size)
    library().ekt_exp_array(pointer(x), int64(x.size), pointer(memory))
    return unguarded(memory)


def test_exp_is_within_two_units_of_the_last_place() -> None:
    x = np.linspace(-87.3, 88.7, 200_003).astype(np.float32)
    x = x[(x >= -87.3) & (x <= np.float32(88.7))]
    assert ulps(exp_array(x), np.exp(x.astype(np.float64))).max() <= 2


def test_exp_of_the_extremes() -> None:
    x = np.array([0, -0.0, -88, -1e30, -np.inf, 89, np.inf, np.nan], np.float32)
    got = exp_array(x)
    assert got[0] == got[1] == 1 and (got[2:5] == 0).all() and np.isnan(got[7])
    assert got[5] == got[6] == exp_array(np.array([88.7], np.float32))[0]


@given(COLUMNS, st.integers(0, 2**32))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bits_are_those_of_the_scalar_version(instruction_set: str, columns: int, seed: int) -> None:
    def results() -> list[Floats]:
        x, weight = normal(seed, 1, 2, 3, columns) * np.float32(5), normal(seed + 1, columns)
        flat = x.reshape(6, columns)
        return [
            rms_norm(x, weight, 1e-6),
            softmax(flat),
            gated_act(flat, flat[::-1].copy(), "silu"),
            gated_act(flat, flat[::-1].copy(), "gelu_tanh"),
            exp_array(flat * np.float32(9)),
        ]

    mine = results()
    use("scalar")
    try:
        scalar = results()
    finally:
        use(instruction_set)
    for a, b in zip(mine, scalar, strict=True):
        assert same_bits(a, b)
