"""Codes, presets, overrides and the report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints import write_checkpoint

from edgekit.export.errors import QuantizationError
from edgekit.export.models import architecture
from edgekit.export.ops import dequantize, unpack_codes
from edgekit.export.quantize import PRESETS, Override, Scheme, choose, parse_override, quantize_matrix


@settings(max_examples=60)
@given(
    st.integers(0, 2**31),
    st.integers(1, 9),
    st.integers(1, 5),
    st.sampled_from([16, 32, 64]),
    st.floats(1e-6, 1e4),
)
def test_int4_stays_within_half_a_step(seed: int, rows: int, groups: int, group: int, scale: float) -> None:
    """Without clipping every error is at most half of the group's step; the search may clip only to lower
    the group's error.
    """
    w = (
        torch.from_numpy(
            np.random.default_rng(seed).standard_normal((rows, groups * group)).astype(np.float32)
        )
        * scale
    )
    q = quantize_matrix(w, 4, group)
    assert q.group_scales is not None and q.scales is not None
    assert q.group_scales.min() >= 1 and q.group_scales.max() <= 15
    codes = unpack_codes(q.weight, 4)
    assert codes.shape == w.shape and codes.min() >= -8 and codes.max() <= 7
    integers = codes.to(torch.int16).unflatten(1, (-1, group)) * q.group_scales[..., None].to(torch.int16)
    assert integers.abs().max() <= 120, "the product must fit int8"
    step = (q.group_scales * q.scales[:, None])[..., None]
    covering = torch.maximum(
        w.unflatten(1, (-1, group)).amax(2) / 7, -w.unflatten(1, (-1, group)).amin(2) / 8
    )
    wide = (covering / q.scales[:, None]).ceil().clamp(1, 15)[..., None] * q.scales[:, None, None]
    error = (q.dequantize() - w).unflatten(1, (-1, group))
    simple = (w.unflatten(1, (-1, group)) / wide).round().clamp(-8, 7) * wide - w.unflatten(1, (-1, group))
    assert torch.all(error.square().sum(2) <= simple.square().sum(2) * (1 + 1e-5) + 1e-12 * scale**2)
    unclipped = (codes.unflatten(1, (-1, group)) > -8) & (codes.unflatten(1, (-1, group)) < 7)
    assert torch.all((error.abs() <= 0.5001 * step)[unclipped])


@settings(max_examples=40)
@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 70), st.floats(1e-6, 1e4))
def test_int8_is_within_half_a_step_of_every_row(seed: int, rows: int, columns: int, scale: float) -> None:
    w = (
        torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32))
        * scale
    )
    q = quantize_matrix(w, 8, 0)
    assert q.scales is not None and q.group_scales is None
    assert torch.all((q.dequantize() - w).abs() <= 0.5001 * q.scales[:, None])
    assert unpack_codes(q.weight, 8).min() >= -127


def test_layout_is_offset_binary_low_nibble_first() -> None:
    assert unpack_codes(torch.tensor([[0x10, 0xF8]], dtype=torch.uint8), 4).tolist() == [[-8, -7, 0, 7]]
    assert unpack_codes(torch.tensor([[0, 128, 255]], dtype=torch.uint8), 8).tolist() == [[-128, 0, 127]]
    w = dequantize(
        torch.tensor([[0x9F]], dtype=torch.uint8),
        torch.tensor([[3, 2]], dtype=torch.uint8),
        torch.tensor([0.5]),
    )
    assert w.tolist() == [[7 * 3 * 0.5, 1 * 2 * 0.5]]


def test_zero_rows_and_constants_survive() -> None:
    w = torch.zeros(3, 64)
    w[1] = 2.5
    for bits in (4, 8):
        assert torch.allclose(quantize_matrix(w, bits, 32).dequantize(), w, rtol=0.08)


def test_chunks_of_rows_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgekit.export.quantize import codes

    w = torch.randn(37, 64)
    whole = {bits: quantize_matrix(w, bits, 32) for bits in (4, 8)}
    monkeypatch.setattr(codes, "ROWS_AT_ONCE_ELEMENTS", 5 * 64)
    for bits, expected in whole.items():
        got = quantize_matrix(w, bits, 32)
        assert torch.equal(got.weight, expected.weight) and got.relative_error == pytest.approx(
            expected.relative_error
        )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_damaged_weights_are_refused(value: float) -> None:
    w = torch.randn(4, 32)
    w[2, 3] = value
    with pytest.raises(QuantizationError, match="NaN or infinity"):
        quantize_matrix(w, 4, 32)


def test_a_group_that_does_not_divide_is_reported_not_left_float() -> None:
    scheme = Scheme("int4", 64)
    assert scheme.choose("a", "mlp", (8, 128)).bits == 4
    halved = scheme.choose("a", "mlp", (8, 96))
    assert (halved.bits, halved.group_size) == (4, 32) and "96 columns do not divide" in halved.note
    fallback = scheme.choose("a", "mlp", (8, 40))
    assert fallback.bits == 8 and "stored in 8 bits" in fallback.note


def test_presets_cover_every_role() -> None:
    from edgekit.export.presets import ROLES

    for preset, bits in PRESETS.items():
        assert set(bits) == set(ROLES) - {"float"}, preset
    assert PRESETS["mixed4"]["experts"] == PRESETS["mixed4"]["mlp"] == 4
    assert (
        PRESETS["mixed4"]["attention"] == PRESETS["mixed4"]["router"] == PRESETS["mixed4"]["embedding"] == 8
    )


def test_overrides_by_pattern_and_the_last_wins(tmp_path: Path) -> None:
    arch = architecture(write_checkpoint(tmp_path, "llada"))
    scheme = Scheme("mixed4", 32, (Override("layers.*.mlp.*", 16), Override("layers.1.mlp.down_proj", 8)))
    choices = choose(arch, scheme)
    assert choices["layers.0.mlp.down_proj"].bits == 16
    assert choices["layers.1.mlp.down_proj"].bits == 8
    assert choices["layers.1.self_attn.q_proj"].bits == 8
    with pytest.raises(QuantizationError, match=r"'layer\.1\.\*' matches no weight"):
        choose(arch, Scheme("mixed4", 32, (Override("layer.1.*", 8),)))


@pytest.mark.parametrize("text", ["layers.0", "=8", "a=5", "a="])
def test_malformed_overrides(text: str) -> None:
    with pytest.raises(QuantizationError, match="PATTERN=BITS"):
        parse_override(text)


def test_unknown_presets_and_group_sizes_list_what_there_is() -> None:
    with pytest.raises(QuantizationError, match="supported: bf16, int8, mixed4, int4"):
        Scheme("q4")
    with pytest.raises(QuantizationError, match="group size 48"):
        Scheme("int4", 48)
    with pytest.raises(QuantizationError, match="vocabulary tables"):
        Scheme("int8", 32, (Override("embedding", 4),)).choose("embedding", "embedding", (8, 64))
