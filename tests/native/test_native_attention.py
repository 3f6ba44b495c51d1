"""Attention of the native core against torch's in float64, on every instruction set of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.native_floats import INSTRUCTION_SETS, Floats, attention, available, use

HIDDEN = np.float32(-1e30)
FUSED = ("avx512", "avx2", "neon")


@pytest.fixture(params=INSTRUCTION_SETS, scope="module", autouse=True)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    if not use(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    use(None)


@dataclass
class Case:
    """q, k, v as the columns of one product [T, ...] leave them, the prefix as buffers with room left."""

    q: Floats
    k: Floats
    v: Floats
    prefix_k: Floats
    prefix_v: Floats
    mask: Floats | None
    scale: float

    def run(self, threads: int = 1, out: Floats | None = None) -> Floats:
        return attention(
            *(self.q, self.k, self.v, self.prefix_k, self.prefix_v, self.mask, self.scale),
            threads=threads,
            out=out,
        )

    def expected(self) -> np.ndarray:
        def wide(x: Floats) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(x)).double()

        keys = torch.cat((wide(self.prefix_k), wide(self.k)), 2)
        values = torch.cat((wide(self.prefix_v), wide(self.v)), 2)
        repeat = self.q.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(repeat, 1), values.repeat_interleave(repeat, 1)
        mask = None if self.mask is None else wide(self.mask)
        result = F.scaled_dot_product_attention(wide(self.q), keys, values, attn_mask=mask, scale=self.scale)
        return result.numpy()

    def check(self, got: Floats) -> None:
        """Errors of float32 sums: those of the scores grow with the scores, the output's with the keys."""
        keys = self.k.shape[2] + self.prefix_k.shape[2]
        size = float(max(np.abs(self.v).max(), np.abs(self.prefix_v).max(initial=0)))
        scores = self.scale * float(np.linalg.norm(self.q, axis=-1).max())
        scores *= float(np.linalg.norm(self.k, axis=-1).max())
        tolerance = 2.0**-24 * size * (8 + keys**0.5 + 2 * scores)
        assert np.abs(got - self.expected()).max() <= tolerance


def case(
    head_dim: int,
    positions: int,
    prefix: int,
    kv_heads: int = 1,
    group: int = 1,
    mask: str = "none",
    seed: int = 0,
    sharpness: float = 1.0,
) -> Case:
    rng = np.random.default_rng(seed)

    def columns_of_a_product(heads: int) -> Floats:
        wide = rng.standard_normal((positions, (heads + 1) * head_dim), np.float32)
        view = wide[:, head_dim:].reshape(1, positions, heads, head_dim)
        return view.transpose(0, 2, 1, 3)

    def buffer() -> Floats:
        return rng.standard_normal((1, kv_heads, prefix + 3, head_dim), np.float32)[:, :, :prefix]

    added: Floats | None = None
    if mask != "none":
        t, s = np.arange(positions)[:, None] + prefix, np.arange(prefix + positions)[None]
        seen = {
            "causal": s <= t,
            "window": (s <= t) & (s > t - 40),
            "later": s >= t,
            "scattered": (rng.random((positions, prefix + positions)) < 0.3) | (s == t),
            "added": np.ones((positions, prefix + positions), bool),
            "zeros": np.ones((positions, prefix + positions), bool),
        }[mask]
        added = np.where(seen, np.float32(0), HIDDEN)
        if mask == "added":
            added = rng.standard_normal(added.shape, np.float32)
    return Case(
        columns_of_a_product(kv_heads * group),
        columns_of_a_product(kv_heads),
        columns_of_a_product(kv_heads),
        buffer(),
        buffer(),
        added,
        sharpness / head_dim**0.5,
    )


CASES = st.builds(
    case,
    head_dim=st.one_of(st.integers(8, 64), st.sampled_from([64, 128, 256, 512])),
    positions=st.integers(1, 40),
    prefix=st.integers(0, 70),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    mask=st.sampled_from(["none", "causal", "window", "later", "scattered", "added", "zeros"]),
    seed=st.integers(0, 2**32),
    sharpness=st.sampled_from([0.2, 1.0, 10.0]),
)


@given(CASES)
@example(case(128, 130, 120, 1, 2, "window"))
@example(case(128, 300, 200))
@example(case(256, 97, 200, 1, 2, "causal"))
@example(case(512, 40, 300, 1, 8, "causal"))
@example(case(64, 33, 0, 2, 1, "later"))
@settings(deadline=None, max_examples=100)
def test_attention_is_that_of_torch(attended: Case) -> None:
    attended.check(attended.run())


@pytest.mark.parametrize("head_dim", range(8, 65))
def test_every_head_dimension(head_dim: int) -> None:
    attended = case(head_dim, 19, 90, 1, 2, "causal", seed=head_dim)
    attended.check(attended.run())


@pytest.mark.parametrize("positions", range(1, 41))
def test_every_number_of_positions(positions: int) -> None:
    attended = case(24, positions, 100 - positions, seed=positions)
    attended.check(attended.run())


@pytest.mark.parametrize(
    "attended",
    [
        case(64, 290, 33, 2),
        case(512, 40, 70, 1, 4, "causal"),
        case(9, 5, 0, 4),
        case(256, 200, 10, 3, 2, "window"),
    ],
)
def test_bits_do_not_depend_on_threads(attended: Case) -> None:
    one = attended.run()
    for threads in (2, 3):
        assert attended.run(threads).tobytes() == one.tobytes()


@pytest.mark.parametrize("attended", [case(128, 70, 150, 2, 2, "causal"), case(33, 7, 95), case(512, 9, 100)])
def test_sets_with_fused_products_agree_bit_for_bit(instruction_set: str, attended: Case) -> None:
    results = []
    for name in set(FUSED) & set(available()):
        use(name)
        results.append(attended.run().tobytes())
    use(instruction_set)
    assert all(result == results[0] for result in results)


@given(CASES.filter(lambda c: c.mask is not None), st.integers(0, 2**32))
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.filter_too_much])
def test_hidden_keys_have_no_weight_at_all(attended: Case, seed: int) -> None:
    assert attended.mask is not None
    before = attended.run()
    hidden = (attended.mask == HIDDEN).all(0)
    prefix = attended.prefix_k.shape[2]
    rng = np.random.default_rng(seed)
    for array, of in ((attended.prefix_v, hidden[:prefix]), (attended.v, hidden[prefix:])):
        array[:, :, of] = rng.standard_normal(array[:, :, of].shape) * 1e30
    for array, of in ((attended.prefix_k, hidden[:prefix]), (attended.k, hidden[prefix:])):
        array[:, :, of] *= 100
    assert np.array_equal(attended.run(), before)


def test_what_is_hidden_from_one_query_is_seen_by_another() -> None:
    attended = case(16, 2, 200, mask="zeros")
    assert attended.mask is not None
    # No block of keys is hidden from both queries; whole blocks are hidden from one, the first among them.
    attended.mask[0, :150] = HIDDEN
    attended.mask[1, 50:] = HIDDEN
    attended.check(attended.run())
    attended.prefix_v[:, :, :50] = 1e30
    assert np.abs(attended.run()[0, 0, 0]).max() < 10


def test_a_mask_of_minus_infinity_hides() -> None:
    attended = case(32, 30, 100, mask="causal")
    assert attended.mask is not None
    with_large_numbers = attended.run()
    attended.mask[attended.mask == HIDDEN] = -np.inf
    assert np.array_equal(attended.run(), with_large_numbers)


def test_a_zero_mask_changes_no_bit() -> None:
    attended = case(64, 50, 60, 1, 2, "zeros")
    with_mask = attended.run()
    attended.mask = None
    assert attended.run().tobytes() == with_mask.tobytes()


def test_what_is_not_finite_surfaces() -> None:
    attended = case(16, 20, 100, 2)
    attended.q[0, 1, 3, 2] = np.nan
    got = attended.run()
    assert np.isnan(got[0, 1, 3]).all()
    got[0, 1, 3] = 0
    assert np.isfinite(got).all()
    attended.prefix_k[0, 0, 7, 1] = np.nan
    assert np.isnan(attended.run()[0, 0]).all()


def test_large_scores_do_not_overflow() -> None:
    attended = case(32, 20, 120)
    attended.q *= 1e4
    attended.k[0, 0, 11] = attended.q[0, 0, 4] * 1e4
    got = attended.run()
    assert np.isfinite(got).all()
    assert np.allclose(got[0, 0, 4], attended.v[0, 0, 11])


def test_the_output_may_take_the_place_of_the_queries() -> None:
    attended = case(40, 300, 20, 2, 2)
    expected = attended.run().copy()
    assert np.array_equal(attended.run(out=attended.q), expected)
