"""The native vocabulary head against float64 numpy, against a join of tiles in numpy, and against itself."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.head_join import HeadState
from support.head_oracle import check_saturated, entropy, others
from support.native_head import Floats, Head, aligned
from support.native_testing import library

from edgekit.runtime.engines.base import TilePart
from edgekit.runtime.sampling import PhiloxNoise
from edgekit.runtime.sampling.noise import PhiloxGumbel
from edgekit.runtime.sampling.types import HeadOutput, HeadRequest

HIDDEN, VOCABULARY = 96, 1500
NOISE = (2**63 + 5, 3, 0.75)
IDS = ("argmax", "sample", "top_ids")


def rounded(x: Floats) -> NDArray[np.float64]:
    """x [T, H] as the int8 of a row times its scale, which is what an 8-bit table is multiplied with."""
    largest = np.abs(x).max(1, keepdims=True)
    codes = np.rint(x * (np.float32(127) / largest))
    return np.asarray(codes.astype(np.float64) * (largest / np.float32(127)))


def table(bits: int, vocabulary: int = VOCABULARY, hidden: int = HIDDEN, seed: int = 0) -> Head:
    rng = np.random.default_rng(seed)
    if bits == 8:
        codes = aligned((vocabulary, hidden), np.uint8)
        codes[:] = rng.integers(1, 256, codes.shape)
        scales = aligned((vocabulary,), np.float32)
        scales[:] = rng.uniform(0.0005, 0.003, vocabulary)
        return Head(codes, scales)
    codes = aligned((vocabulary, hidden), np.uint16)
    codes[:] = rng.standard_normal(codes.shape, np.float32).view(np.uint32) >> 16
    return Head(codes)


def embedding(head: Head) -> NDArray[np.float64]:
    if head.scales is None:
        return (head.codes.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return (head.codes.astype(np.float64) - 128) * head.scales[:, None]


def hidden_states(rows: int, hidden: int = HIDDEN, seed: int = 1) -> Floats:
    """Rows from nearly uniform to nearly certain distributions."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, hidden), np.float32)
    return np.asarray(np.ldexp(x, rng.integers(-5, 3, (rows, 1), np.int32)))


def expected_z(head: Head, x: Floats) -> NDArray[np.float64]:
    wide = x.astype(np.float64) if head.scales is None else rounded(x)
    logits = wide @ embedding(head).T
    if head.softcap > 0:
        logits = head.softcap * np.tanh(logits / head.softcap)
    return np.asarray(logits / head.temperature)


def soft_tolerance(head: Head, largest: NDArray[Any]) -> NDArray[np.float64]:
    """How far soft embeddings may be off for rows whose largest probability is `largest`: with 8 bits each
    weight has an error of its own of up to 2^-17 of the largest; where no weight is above 1/512 of the sum,
    errors add up to a deviation of sqrt(1 / 512 / 127) of a row."""
    digits = 2.0**-16 * np.sqrt(head.codes.shape[0]) * largest + 0.004 * np.minimum(1, 4 / 512 / largest)
    if head.scales is None:
        digits = 0 * largest
    return np.asarray((digits + 5e-6) * np.abs(embedding(head)).max())


def check_statistics(head: Head, out: HeadOutput, rows: int) -> None:
    """Everything else follows from z, which `out` holds, in float64."""
    assert out.logits is not None
    z = out.logits.astype(np.float64)
    index = np.arange(rows)
    assert np.array_equal(out.argmax, z.argmax(1))
    top = z.max(1, keepdims=True)
    e = np.exp(z - top)
    total = e.sum(1)
    p = e / total[:, None]
    log_z = top[:, 0] + np.log(total)
    np.testing.assert_allclose(out.log_z, log_z, rtol=3e-7, atol=1e-6)
    np.testing.assert_allclose(out.others, others(z), rtol=5e-6, atol=1e-36)
    np.testing.assert_allclose(out.entropy, entropy(z), rtol=2e-5, atol=1e-35)
    if head.noise is not None:
        seed, draw, scale = head.noise
        noise = PhiloxGumbel(seed, draw, rows, z.shape[1])(0, z.shape[1])
        best = (out.logits + noise * np.float32(scale)).argmax(1)
        assert np.array_equal(out.sample, best)
        np.testing.assert_allclose(out.sample_prob, np.exp(z[index, best] - log_z), rtol=1e-5)
    if head.soft:
        assert out.soft is not None
        wide = embedding(head)
        near = soft_tolerance(head, p.max(1))
        assert (np.abs(out.soft - p @ wide) <= near[:, None]).all()
    if head.top_k:
        order = np.argsort(-out.logits, axis=1, kind="stable")[:, : head.top_k]
        assert np.array_equal(out.top_ids, order)
        assert np.array_equal(out.top_z, np.take_along_axis(out.logits, order, 1))


def check_near(a: HeadOutput, b: HeadOutput, near: float = 1e-6) -> None:
    """Equal ids; floats equal within `near`, relative to 1 or more."""
    for name, value in vars(a).items():
        other = getattr(b, name)
        if value is None or name in IDS:
            assert np.array_equal(value, other), name
        else:
            np.testing.assert_allclose(value, other, rtol=near, atol=near, err_msg=name)


def check_same(a: HeadOutput, b: HeadOutput) -> None:
    for name, value in vars(a).items():
        assert (value is None and getattr(b, name) is None) or np.array_equal(value, getattr(b, name)), name


@pytest.fixture
def instruction_set() -> Iterator[Any]:
    """Chooses one for the noise and the statistics: false where this processor has not got it."""

    def use(name: str | None) -> bool:
        encoded = None if name is None else name.encode()
        if encoded is not None and not library().ekt_can_use_instruction_set(encoded):
            return False
        library().ekt_head_use(encoded)
        library().ekt_noise_use(encoded)
        return True

    yield use
    use(None)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(
    ("softcap", "temperature"), [(0.0, 1.0), (0.0, 0.7), (30.0, 1.0), (5.0, 0.3)], ids=lambda v: str(v)
)
def test_statistics_are_those_of_float64(bits: int, softcap: float, temperature: float) -> None:
    rows = 21
    head = table(bits).but(
        softcap=softcap, temperature=temperature, noise=NOISE, soft=True, top_k=17, tile_rows=700, threads=2
    )
    x = hidden_states(rows)
    out = head(x)
    z = expected_z(head, x)
    assert out.logits is not None
    np.testing.assert_allclose(out.logits, z, rtol=2e-6, atol=3e-6 * max(1.0, np.abs(z).max()))
    if bits == 8 and softcap == 0:  # nothing rounds but the scales
        np.testing.assert_allclose(out.logits, z, rtol=5e-7, atol=1e-30)
    check_statistics(head, out, rows)


@given(
    st.integers(1, 40), st.integers(1, 9000), st.integers(0, 2**32), st.sampled_from([8, 16]), st.booleans(),
    st.booleans(), st.integers(0, 60), st.integers(1, 2),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_any_size(
    rows: int, vocabulary: int, seed: int, bits: int, noisy: bool, soft: bool, top_k: int, threads: int
) -> None:
    rng = np.random.default_rng(seed)
    head = table(bits, vocabulary, 32, seed).but(
        tile_rows=int(rng.integers(min(40, vocabulary), 2 * vocabulary)),
        noise=NOISE if noisy else None, soft=soft, top_k=top_k, threads=threads,
        softcap=float(rng.choice([0, 3])), temperature=float(rng.uniform(0.2, 2)),
    )  # fmt: skip
    check_statistics(head, head(hidden_states(rows, 32, seed)), rows)


@pytest.mark.parametrize("tile_rows", [1, 64, 5000])
@pytest.mark.parametrize("bits", [8, 16])
def test_statistics_hold_where_probabilities_round_to_one(
    bits: int, tile_rows: int, instruction_set: Any
) -> None:
    head, x = table(bits, 400).but(tile_rows=tile_rows), hidden_states(20)
    for name in ("scalar", "avx2", "avx512", "neon"):
        if instruction_set(name):
            check_saturated(lambda temperature: head.but(temperature=temperature)(x))


@pytest.mark.parametrize("bits", [8, 16])
def test_the_cut_into_tiles_does_not_matter(bits: int) -> None:
    head = table(bits, 5000).but(noise=NOISE, soft=True, top_k=9, softcap=20.0, temperature=0.8)
    x = hidden_states(11)
    whole = head(x)
    near = soft_tolerance(head, 1 / (1 + whole.others))[:, None]
    for tile_rows in (64, 640, 4096, 4999):
        cut = head.but(tile_rows=tile_rows)(x)
        assert cut.soft is not None and whole.soft is not None
        assert (np.abs(cut.soft - whole.soft) <= near).all()
        check_near(cut, replace(whole, soft=cut.soft))


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_threads_and_instruction_sets_give_the_same_bits(bits: int, rows: int, instruction_set: Any) -> None:
    head = table(bits, 4200).but(noise=NOISE, soft=True, top_k=5, softcap=9.0, tile_rows=3000)
    x = hidden_states(rows)
    assert instruction_set("scalar")
    expected = head(x)
    for name in ("avx512", "avx2", "neon", "scalar"):
        if instruction_set(name):
            for threads in (1, 2, 3):
                check_same(head.but(threads=threads)(x), expected)


def test_ties_keep_the_lower_token() -> None:
    """Equal rows of the table, within a vector, across blocks and across tiles."""
    head = table(8, 9000).but(top_k=6, tile_rows=8192)
    x = hidden_states(5)
    best = int(head(x).argmax[0])
    assert head.scales is not None
    for token in (3000, 3001, 3017, 4095, 4096, 8191, 8192, 8999):
        head.codes[token], head.scales[token] = head.codes[best], head.scales[best]
    expected = sorted({best, 3000, 3001, 3017, 4095, 4096, 8191, 8192, 8999})
    out = head(x)
    assert out.argmax[0] == expected[0]
    assert out.top_ids is not None and out.top_ids[0].tolist() == expected[:6]
    check_statistics(head, out, 5)
    # Noise that is nothing leaves a tie of z + 0 * noise.
    silent = head.but(noise=(1, 2, 0.0))(x)
    assert np.array_equal(silent.sample, silent.argmax)


def test_all_scores_equal() -> None:
    head = table(8, 300).but(top_k=4, soft=True, noise=(3, 4, 0.0))
    out = head(np.zeros((3, HIDDEN), np.float32))
    assert np.array_equal(out.argmax, [0, 0, 0]) and np.array_equal(out.sample, [0, 0, 0])
    assert np.array_equal(out.top_ids, [[0, 1, 2, 3]] * 3)
    np.testing.assert_allclose(out.entropy, np.log(300), rtol=1e-6)
    np.testing.assert_allclose(out.soft, [embedding(head).mean(0)] * 3, atol=1e-6)


def test_a_certain_row_keeps_its_token_whatever_comes_before_and_after() -> None:
    """Weights that vanish against the largest z: whole blocks weigh nothing."""
    head = table(8, 9000, 64).but(soft=True, tile_rows=9000)
    assert head.scales is not None
    head.codes[:], head.codes[5000] = 118, 255
    head.scales[:], head.scales[5000] = 0.01, 1.0
    x = np.ones((2, 64), np.float32)
    out = head(x)
    assert np.array_equal(out.argmax, [5000, 5000])
    np.testing.assert_array_equal(out.entropy, [0, 0])
    np.testing.assert_allclose(out.soft, np.full((2, 64), 127.0), rtol=2e-5)
    check_statistics(head, out, 2)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_broken_scores_surface(value: float) -> None:
    x = hidden_states(4)
    x[2, 5] = value
    for bits in (8, 16):
        # A softcap would turn infinity into a number.
        head = table(bits).but(noise=NOISE, soft=True, top_k=3, softcap=7.0 if np.isnan(value) else 0.0)
        out = head(x)
        assert np.isfinite(out.log_z[[0, 1, 3]]).all()
        assert not np.isfinite(out.log_z[2])
        # The other rows are what they are without it.
        good = head(x[[0, 1]])
        assert np.array_equal(out.argmax[:2], good.argmax)
        assert ((out.argmax >= 0) & (out.argmax < VOCABULARY)).all()
        assert out.sample is not None and ((out.sample >= 0) & (out.sample < VOCABULARY)).all()


@pytest.mark.parametrize("bits", [8, 16])
def test_agrees_with_the_python_head(bits: int) -> None:
    """The reference joins the parts that export's reference operator gives for each tile."""
    import torch

    from edgekit.export.ops import head_statistics

    rows, tile_rows = 13, 400
    head = table(bits).but(
        noise=NOISE, soft=True, top_k=8, softcap=12.0, temperature=0.9, tile_rows=tile_rows
    )
    out = head(hidden_states(rows))
    assert out.logits is not None
    noise = PhiloxNoise(NOISE[0])
    noise.draws = NOISE[1]
    tile = noise.gumbel(rows, VOCABULARY)
    request = HeadRequest(gumbel=tile, gumbel_scale=NOISE[2], soft=True, top_k=8, logits=True)
    state = HeadState(rows, HIDDEN, request, VOCABULARY)
    weights = torch.from_numpy(embedding(head).astype(np.float32))
    for start in range(0, VOCABULARY, tile_rows):
        stop = min(start + tile_rows, VOCABULARY)
        z = torch.from_numpy(out.logits[:, start:stop].copy())
        values = torch.from_numpy(np.ascontiguousarray(tile(start, stop) * np.float32(NOISE[2])))
        parts = [part.numpy() for part in head_statistics(z, values, weights[start:stop])]
        state.add(start, TilePart(*parts))
        state.add_logits(start, z.numpy())
    reference = state.result()
    assert np.array_equal(out.top_z, reference.top_z)
    assert out.soft is not None and reference.soft is not None
    assert (np.abs(out.soft - reference.soft) <= soft_tolerance(head, 1 / (1 + out.others))[:, None]).all()
    check_near(replace(out, soft=None), replace(reference, soft=None), 5e-6)


def test_what_a_caller_may_not_ask() -> None:
    head = table(8)
    x = hidden_states(2)
    for wrong in ({"temperature": 0.0}, {"temperature": float("nan")}, {"softcap": -1.0}, {"top_k": -1}):
        with pytest.raises(RuntimeError, match="must be positive"):
            head.but(**wrong)(x)


def test_memory_is_bounded() -> None:
    """The largest model's head stays below 64 MiB, results included."""
    count = library().ekt_head_bytes
    count.restype = ctypes.c_uint64
    arguments = [ctypes.c_int64(n) for n in (2, 256, 2816, 8192, 1, 1, 50)]
    assert 3 << 20 < count(*arguments) < 64 << 20
