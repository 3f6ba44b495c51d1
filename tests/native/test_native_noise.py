"""The native core's random numbers against their specification in numpy, bit for bit."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import noise_reference as reference
from support.native_testing import library

from edgekit.runtime.sampling import PhiloxNoise

SETS = ("neon", "scalar") if platform.machine() in ("arm64", "aarch64") else ("avx512", "avx2", "scalar")
SEEDS = st.integers(0, 2**64 - 1)
FIRST = st.one_of(st.integers(0, 40), st.integers(0, 2**62))
COUNTS = st.one_of(st.integers(0, 40), st.integers(0, 700))


@pytest.fixture(params=SETS, scope="module", autouse=True)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    if not library().ekt_can_use_instruction_set(request.param.encode()):
        pytest.skip(f"this processor has no {request.param}")
    library().ekt_noise_use(request.param.encode())
    yield request.param
    library().ekt_noise_use(None)


def pointer(array: NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def stream(function: str, dtype: type, seed: int, draw: int, *numbers: int) -> NDArray[np.generic]:
    """The last of the numbers is the count."""
    out = np.empty(numbers[-1] + 1, dtype)
    out[-1] = 77
    arguments = [ctypes.c_uint64(n) for n in (seed, draw, *numbers)]
    getattr(library(), function)(*arguments, pointer(out))
    assert out[-1] == 77
    return out[:-1]


@given(SEEDS, SEEDS, FIRST, COUNTS)
@example(1, 2, 2**35 - 3, 300)
@settings(max_examples=40)
def test_halves_are_the_stream(seed: int, draw: int, first: int, count: int) -> None:
    expected = reference.philox_halves(seed, draw, first, count)
    assert np.array_equal(stream("ekt_philox_halves", np.uint32, seed, draw, first, count), expected)


@given(SEEDS, SEEDS, FIRST, COUNTS)
@settings(max_examples=40)
def test_gumbel_noise_is_that_of_the_halves(seed: int, draw: int, first: int, count: int) -> None:
    expected = reference.gumbel_of_halves(reference.philox_halves(seed, draw, first, count))
    got = stream("ekt_gumbel_noise", np.float32, seed, draw, first, count)
    assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))


ROWS, TOKENS = st.integers(0, 19), st.integers(0, 61)


@given(SEEDS, SEEDS, st.one_of(st.integers(0, 99), st.integers(0, 2**31)), TOKENS, ROWS)
@example(3, 4, 2**32 - 7, 7, 13)
@settings(max_examples=60)
def test_a_tile_of_a_draw_is_that_of_the_specification(
    seed: int, draw: int, first: int, tokens: int, rows: int
) -> None:
    halves = reference.philox_halves(seed, draw, first * rows, tokens * rows)
    expected = reference.gumbel_of_halves(halves).reshape(tokens, rows).T
    out = np.full(tokens * rows + 1, 77, np.float32)
    assert tile_of(seed, draw, first, tokens, rows, out) == 0
    assert out[-1] == 77
    found = out[:-1].reshape(tokens, rows)
    assert np.array_equal(found.view(np.uint32), np.ascontiguousarray(expected.T).view(np.uint32))


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((-1, 1, 1), "first_token is -1; it must be 0..4294967296"),
        ((2**32, 1, 1), "tokens is 1; it must be 0..0"),
        ((0, -1, 1), "tokens is -1"),
        ((2**63 - 1, 2**63 - 1, 1), "first_token is 9223372036854775807"),
        ((0, 1, 2**22 + 1), "rows is 4194305; it must be 0..4194304"),
        ((0, 1, -1), "rows is -1"),
    ],
)
def test_tiles_that_no_draw_has_are_refused(numbers: tuple[int, int, int], words: str) -> None:
    assert tile_of(0, 0, *numbers, np.zeros(1, np.float32)) == 1
    assert words in last_error()


def test_a_tile_needs_room_where_it_is_not_empty() -> None:
    assert tile_of(0, 0, 3, 2, 4, None) == 1 and "out is null; give room for 8 floats" in last_error()
    assert tile_of(0, 0, 3, 0, 4, None) == tile_of(0, 0, 3, 4, 0, None) == 0


def tile_of(seed: int, draw: int, first: int, tokens: int, rows: int, out: NDArray[np.float32] | None) -> int:
    function = library().ek_gumbel_noise
    function.argtypes = [ctypes.c_uint64] * 2 + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    status: int = function(seed, draw, first, tokens, rows, None if out is None else out.ctypes.data)
    return status


def last_error() -> str:
    function = library().ek_last_error
    function.restype = ctypes.c_char_p
    text: bytes = function()
    return text.decode()


def gumbel_of(halves: NDArray[np.uint32]) -> NDArray[np.float32]:
    out = np.empty(len(halves), np.float32)
    library().ekt_gumbel_of_halves(pointer(halves), ctypes.c_int64(len(halves)), pointer(out))
    return out


def test_gumbel_has_the_bits_of_the_specification() -> None:
    """Of the 2^24 values every 61st, both ends, and the neighbourhoods of u = sqrt(1/2), where the way to
    take 1 - u changes, and of e = sqrt(1/2), 1, sqrt(2)."""
    around = [np.exp(-(np.sqrt(2.0) ** k)) for k in (-1, 0, 1)] + [np.sqrt(0.5)]
    parts = [np.arange(0, 2**24, 61), np.arange(2000), np.arange(2**24 - 2000, 2**24)]
    parts += [int(2**24 * u) + np.arange(-2000, 2000) for u in around]
    halves = (np.concatenate(parts).astype(np.uint32) << 8) + np.uint32(17)
    expected = reference.gumbel_of_halves(halves)
    assert np.array_equal(gumbel_of(halves).view(np.uint32), expected.view(np.uint32))


@given(st.integers(0, 70))
@settings(max_examples=20)
def test_gumbel_works_in_place_and_at_any_address(count: int) -> None:
    halves = np.random.default_rng(count).integers(0, 2**32, count + 1, dtype=np.uint32)
    expected = reference.gumbel_of_halves(halves[1:])
    part = halves[1:]
    library().ekt_gumbel_of_halves(pointer(part), ctypes.c_int64(count), pointer(part))
    assert np.array_equal(part, expected.view(np.uint32))


@given(SEEDS, st.one_of(st.integers(1, 2**32), st.sampled_from([1, 2**31, 2**32])), COUNTS)
@settings(max_examples=40)
def test_integers_and_uniform_are_those_of_a_draw(seed: int, high: int, count: int) -> None:
    noise = PhiloxNoise(seed)
    integers = stream("ekt_philox_integers", np.int64, seed, 0, high, count)
    assert np.array_equal(integers, noise.integers(high, count))
    uniform = stream("ekt_philox_uniform", np.float64, seed, 1, count)
    assert np.array_equal(uniform, noise.uniform(count))


def test_uniform_numbers_are_those_of_the_words(rng: np.random.Generator) -> None:
    of_word = library().ekt_uniform_of_word
    of_word.restype = ctypes.c_double
    words = np.concatenate([rng.integers(0, 2**64, 200, np.uint64), ~np.arange(4096, dtype=np.uint64)])
    words = np.append(words, np.array([0, 2047, 2048, 2**63 - 1, 2**63], np.uint64))
    assert [of_word(ctypes.c_uint64(int(word))) for word in words] == reference.uniform_of_words(
        words
    ).tolist()
