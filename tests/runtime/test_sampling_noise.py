"""The samplers' noise, and the one in numpy that the core's is compared with, against a scalar one."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.noise_reference import gumbel_of_halves, philox_halves, uniform_of_words

from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime.sampling import InvalidOption, PhiloxGumbel, PhiloxNoise

WORD = 2**64 - 1
SEEDS = st.integers(0, WORD)


def philox_block(counter: int, seed: int, draw: int) -> list[int]:
    """Philox4x64-10 on Python integers, from the paper's description."""
    c = [counter & WORD, counter >> 64 & WORD, 0, 0]
    k0, k1 = seed, draw
    for _ in range(10):
        low, high = c[0] * 0xD2E7470EE14C6C93, c[2] * 0xCA5A826395121157
        c = [high >> 64 ^ c[1] ^ k0, high & WORD, low >> 64 ^ c[3] ^ k1, low & WORD]
        k0, k1 = k0 + 0x9E3779B97F4A7C15 & WORD, k1 + 0xBB67AE8584CAA73B & WORD
    return c


def half(seed: int, draw: int, index: int) -> int:
    word = philox_block(index // 8 + 1, seed, draw)[index % 8 // 2]
    return word >> 32 if index % 2 else word & 0xFFFFFFFF


def scalar_gumbel(value: int) -> np.float32:
    """The documented steps on one number at a time."""
    f32 = np.float32
    coefficients = [
        0xBEFFFFFC, 0x3EAAAAA8, 0xBE800213, 0x3E4CD1FB, 0xBE2A13B3, 0x3E1138AF, 0xBE079BAB, 0x3E0424E0,
        0xBD9C19CF,
    ]  # fmt: skip
    c = [np.uint32(bits).view(f32) for bits in coefficients]

    def split(x: np.float32) -> tuple[int, np.float32]:
        bits = int(x.view(np.int32))
        k = (bits - 0x3F3504F3) >> 23
        return k, np.int32(bits - (k << 23)).view(f32) - f32(1)

    def log_of(k: int, f: np.float32) -> np.float32:
        r = c[8]
        for coefficient in reversed(c[:8]):
            r = f32(f32(r * f) + coefficient)
        r = f32(f32(r * f) * f)
        return f32(f32(r + f) + f32(f32(k) * f32(0.693147182464599609375)))

    n = 2 * (value >> 8) + 1
    k, f = split(f32(f32(n) * f32(2.0**-25)))
    if k == 0:
        f = -f32(f32(2**25 - n) * f32(2.0**-25))
    return -log_of(*split(-log_of(k, f)))


@given(SEEDS, SEEDS, st.integers(0, 2**40), st.integers(0, 40))
def test_stream_follows_the_specification(seed: int, draw: int, first: int, count: int) -> None:
    expected = [half(seed, draw, first + i) for i in range(count)]
    assert philox_halves(seed, draw, first, count).tolist() == expected


@given(SEEDS, st.integers(1, 2**32))
def test_integers_and_uniform_follow_the_specification(seed: int, high: int) -> None:
    noise = PhiloxNoise(seed)
    assert noise.integers(high, 9).tolist() == [half(seed, 0, i) * high >> 32 for i in range(9)]
    words = [philox_block(i // 4 + 1, seed, 1)[i % 4] for i in range(5)]
    assert noise.uniform(5).tolist() == [((word >> 11) + 0.5) / 2**53 for word in words]


def test_uniform_numbers_are_inside_their_interval() -> None:
    """The ends of the words, and both sides of the number from which on the sum is rounded."""
    steps = [0, 1, 2, 2**52 - 2, 2**52 - 1, 2**52, 2**52 + 1, 2**53 - 3, 2**53 - 2, 2**53 - 1]
    words = np.array([step << 11 | low for step in steps for low in (0, 2047)], np.uint64)
    found = uniform_of_words(words)
    assert found.min() == 2.0**-54 and found.max() == 1 - 2.0**-53 < 1
    exact = [(Fraction(step) + Fraction(1, 2)) / 2**53 for step in steps for _ in range(2)]
    assert all(abs(Fraction(float(f)) - e) <= Fraction(1, 2**54) for f, e in zip(found, exact, strict=True))
    assert np.all(np.diff(found) >= 0)


@given(SEEDS, st.integers(1, 9), st.integers(0, 30), st.integers(0, 30))
def test_gumbel_tile_is_a_cut_of_the_whole(seed: int, positions: int, a: int, b: int) -> None:
    start, stop = sorted((a, b))
    noise = PhiloxNoise(seed)
    noise.integers(5, 1)
    tile = noise.gumbel(positions, 30)
    part = tile(start, stop)
    assert part.shape == (positions, stop - start) and part.dtype == np.float32
    assert np.array_equal(part, tile(0, 30)[:, start:stop])
    for position in range(positions):
        for token in range(start, min(stop, start + 2)):
            expected = scalar_gumbel(half(seed, 1, token * positions + position))
            assert part[position, token - start] == expected


def test_gumbel_bits_follow_the_specification(rng: np.random.Generator) -> None:
    # Both ends, the border between the two ways to form u - 1, and powers of two.
    border = int(math.sqrt(0.5) * 2**24)
    m = np.concatenate(
        [
            np.arange(300),
            np.arange(2**24 - 300, 2**24),
            np.arange(border - 300, border + 300),
            *(2**b + np.arange(-2, 3) for b in range(3, 24)),
            rng.integers(0, 2**24, 500),
        ]
    )
    halves = (m << 8).astype(np.uint32)
    assert gumbel_of_halves(halves).tolist() == [scalar_gumbel(int(h)) for h in halves]


def test_gumbel_is_accurate(rng: np.random.Generator) -> None:
    m = np.concatenate([np.arange(4000), np.arange(2**24 - 4000, 2**24), rng.integers(0, 2**24, 200_000)])
    exact = -np.log(-np.log1p((m + 0.5) * 2.0**-24 - 1))
    error = np.abs(gumbel_of_halves((m << 8).astype(np.uint32)) - exact)
    # Two float32 logarithms of about one unit in the last place each; values reach 17.3.
    assert (error / np.maximum(np.abs(exact), 1)).max() < 4 * 2.0**-23


def test_gumbel_ignores_the_low_byte_and_covers_more_than_one_chunk() -> None:
    halves = np.arange(200_000, dtype=np.uint32) * np.uint32(21474)
    assert np.array_equal(gumbel_of_halves(halves), gumbel_of_halves(halves | np.uint32(255)))
    assert np.array_equal(gumbel_of_halves(halves)[150_000:], gumbel_of_halves(halves[150_000:]))


def test_gumbel_max_draws_from_the_softmax() -> None:
    probabilities = np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32)
    noise = PhiloxNoise(11).gumbel(40_000, 4)(0, 4)
    frequencies = np.bincount((np.log(probabilities) + noise).argmax(axis=1), minlength=4) / 40_000
    # 5 standard deviations of a count of 40,000 draws are at most 0.0125.
    assert np.abs(frequencies - probabilities).max() < 0.0125


def test_draws_differ_and_repeat() -> None:
    first, second = PhiloxNoise(1), PhiloxNoise(1)
    a, b = first.integers(1000, 50), first.integers(1000, 50)
    assert not np.array_equal(a, b)
    assert np.array_equal(a, second.integers(1000, 50))
    assert np.array_equal(b, second.integers(1000, 50))
    assert not np.array_equal(a, PhiloxNoise(2).integers(1000, 50))


@pytest.mark.parametrize("seed", [-1, 2**64, 10**400, "x", 1.5, True, None, np.float64(2)])
def test_what_is_no_seed_of_64_bits_is_refused(seed: Any) -> None:
    with pytest.raises(InvalidOption, match=f"^seed is .*; use an integer from 0 to {WORD}$"):
        PhiloxNoise(seed)


def test_seeds_of_numpy_are_those_of_python() -> None:
    assert (
        PhiloxNoise(np.uint64(WORD)).integers(1000, 9).tolist()
        == PhiloxNoise(WORD).integers(1000, 9).tolist()
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(("counts", "words"), [(("x", 5), "positions is 'x'"), ((2, -1), "vocab_size is -1")])
def test_noise_for_what_are_no_counts_is_refused(counts: Any, words: str) -> None:
    noise = PhiloxNoise(0)
    with pytest.raises(InvalidRequest, match=f"^{words}; use an integer"):
        noise.gumbel(*counts)
    assert noise.draws == 0
    with pytest.raises(InvalidOption, match="^seed is 'x'; use an integer"):
        PhiloxGumbel("x", 0, 2, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("start", "stop", "words"),
    [(-1, 2, "start is -1; use an integer from 0 to 10"), (3, 2, "3..2 end before"), (0, 11, "stop is 11")],
)
def test_tile_outside_the_vocabulary_is_refused(start: int, stop: int, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        PhiloxNoise(0).gumbel(2, 10)(start, stop)
