"""Scales and values in half precision: what each layout stores of tiny, empty and large weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from edgekit.export.errors import ExportError
from edgekit.export.formats.floats import block_scales, numbers
from edgekit.export.formats.mlx import layout as mlx_layout
from edgekit.export.formats.packages import layout as package_layout
from edgekit.export.ops import unpack_codes
from edgekit.export.quantize import Quantized, quantize_matrix

#: Values [N, K] in float64 of what a layout stores of a quantized matrix.
Values = Callable[[Quantized, str], np.ndarray]


def mlx_values(q: Quantized, precision: str) -> np.ndarray:
    """As MLX has it: scales * code + biases over groups."""
    stored = mlx_layout.arrays("m", "mlp", q, precision)
    codes = unpack_codes(q.weight, q.bits).numpy().astype(np.int64) + 2 ** (q.bits - 1)
    assert np.array_equal(stored["m.weight"].view(np.uint8), q.weight.numpy())
    scales, biases = (
        np.repeat(stored[f"m.{n}"].astype(np.float64), codes.shape[1] // stored["m.scales"].shape[1], 1)
        for n in ("scales", "biases")
    )
    return scales * codes + biases


def package_values(q: Quantized, precision: str) -> np.ndarray:
    """As Core ML and Core AI have it: scales * q over blocks."""
    stored = package_layout.arrays("m", "mlp", q, precision)
    codes = stored["m.codes"]
    if q.bits == 4:
        low, high = (codes << 4).view(np.int8) >> 4, codes.view(np.int8) >> 4
        codes = np.stack([low, high], -1).reshape(len(codes), -1)
    scales = stored["m.scales"].astype(np.float64)
    return np.repeat(scales, codes.shape[1] // scales.shape[1], 1) * codes


LAYOUTS = pytest.mark.parametrize("values", [mlx_values, package_values], ids=["mlx", "packages"])


@LAYOUTS
@pytest.mark.parametrize(("bits", "largest"), [(4, 1.0), (4, 1e-3), (4, 1e-4), (8, 1.0), (8, 1e-3)])
def test_stored_weights_are_the_quantizers_down_to_tiny_ones(
    values: Values, bits: int, largest: float
) -> None:
    """The smallest have scales below float16's normal numbers (2^-14), and their zeros are zeros."""
    for seed, columns in enumerate((64, 96, 160)):
        weight = torch.randn(7, columns, generator=torch.Generator().manual_seed(seed)).clamp(-3, 3)
        weight *= largest / weight.abs().max()
        weight[:, ::5] = 0
        q = quantize_matrix(weight, bits, 32)
        exact = q.dequantize().double().numpy()
        assert not exact[:, ::5].any() and not values(q, "float16")[:, ::5].any()
        np.testing.assert_allclose(values(q, "float32"), exact, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(values(q, "float16"), exact, rtol=0, atol=0.012 * largest)


@LAYOUTS
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_empty_rows_and_matrices_are_zero(values: Values, bits: int, precision: str) -> None:
    assert not values(quantize_matrix(torch.zeros(5, 64), bits, 32), precision).any()
    some = torch.zeros(5, 64)
    some[3, 40] = 0.25
    assert np.array_equal(np.nonzero(values(quantize_matrix(some, bits, 32), precision)), [[3], [40]])


def test_empty_rows_of_a_tied_table_are_zero_in_the_head() -> None:
    q = quantize_matrix(torch.zeros(6, 32), 8, 0)
    assert q.scales is not None
    assert not package_layout.head_array("scales", q.scales.numpy(), "float16").any()


@LAYOUTS
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_that_half_precision_cannot_hold_are_refused(values: Values, bits: int) -> None:
    for weight, said in ((1e-7, "too small for float16"), (1e8, "beyond float16")):
        q = quantize_matrix(torch.full((3, 64), weight), bits, 32)
        with pytest.raises(ExportError, match=rf"^m: .*{said}; export with --precision float32$"):
            values(q, "float16")
        np.testing.assert_allclose(values(q, "float32"), weight, rtol=0.01)


def test_one_row_that_is_left_out_is_refused() -> None:
    """An empty row may vanish beside others; a whole matrix of small weights may not."""
    with pytest.raises(ExportError, match="w: its scales are at most 1e-07, too small for float16"):
        block_scales("w", np.full((3, 1), 1e-7, np.float32), "float16")
    rows = np.array([[1e-30], [2e-4]], np.float32)
    assert block_scales("w", rows, "float16")[0] == 0 and block_scales("w", rows, "float32")[0] > 0


def test_values_beyond_half_precision_are_refused() -> None:
    with pytest.raises(ExportError, match=r"w: holds 70000, beyond float16; export with --precision float32"):
        numbers("w", np.array([1.0, -7e4], np.float32), "float16")
