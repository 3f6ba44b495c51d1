"""Matrix products over stored weights.

Where activations may be rounded, a row is rounded to int8 by its largest value, the product with codes (or
codes times group scales) is exact in int32, and float scales of row and column follow. NVIDIA GPUs that have
tensor cores for it use the kernels of `triton_products`; elsewhere the codes of a matrix are unpacked for
each product.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from edgekit.runtime.engines.torch.matrix import PANEL_ROWS, Matrix

#: `torch._int_mm` on GPUs takes no fewer rows.
_LEAST_ROWS = 32
#: Codes that are unpacked at a time: they stay in the cache until they are multiplied.
BLOCK_CODES = 1 << 21
#: Triton multiplies int8 on tensor cores from this compute capability on.
_TRITON_CAPABILITY = (8, 0)


def linear(x: Tensor, matrix: Matrix, rounds: bool) -> Tensor:
    """x [..., K] times the transpose of a matrix [N, K], float32 [..., N]; `rounds`: activations may be
    rounded to int8.
    """
    if not rounds or matrix.weight is not None:
        return F.linear(x, matrix.dequantized())
    kernels = _kernels(x.device) if matrix.is_in_panels else None
    product = scaled_product if kernels is None else kernels.scaled_product
    return product(*rounded_rows(x.flatten(0, -2)), matrix).view(*x.shape[:-1], matrix.rows)


def grouped_linear(x: Tensor, counts: Sequence[int], matrices: Sequence[Matrix]) -> Tensor:
    """Rows x [R, K] times the transposes of several matrices [N, K] of one shape, float32 [R, N]: `counts[i]`
    rows, behind those of the one before, times matrix i. Activations may be rounded to int8.
    """
    kernels = _kernels(x.device) if _alike(matrices) else None
    if kernels is not None:
        return kernels.grouped_product(*rounded_rows(x), counts, matrices)
    parts = [linear(rows, matrix, True) for rows, matrix in zip(x.split(list(counts)), matrices, strict=True)]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _alike(matrices: Sequence[Matrix]) -> bool:
    """Whether they are in panels, of one shape and form."""
    first = matrices[0]
    return first.is_in_panels and all(each.form == first.form for each in matrices)


def rounded_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """The integers int8 [R, K] nearest to x * (127 / max|x|) of each row, of two equally near ones the even,
    and max|x| / 127 [R, 1]. Rows of zeros stay zeros.
    """
    top = x.abs().amax(-1, keepdim=True)
    step = torch.where(top > 0, 127 / top, 0)
    return (x * step).round().to(torch.int8), top / 127


def scaled_product(x: Tensor, row_scales: Tensor, matrix: Matrix) -> Tensor:
    """Float32 [R, N] of int8 rows x [R, K] with their scales [R, 1], and a matrix of 4 or 8 bits."""
    assert matrix.scales is not None, "it is quantized"
    y = torch.empty(len(x), matrix.rows, device=x.device)
    step = max(1, BLOCK_CODES // (PANEL_ROWS * matrix.columns)) * PANEL_ROWS
    for start in range(0, matrix.rows, step):
        codes = matrix.unpacked(start, start + step)
        y[:, start : start + len(codes)] = integer_product(x, codes)
    return y.mul_(row_scales * matrix.scales[: matrix.rows])


def integer_product(x: Tensor, codes: Tensor) -> Tensor:
    """int32 [R, N] of int8 [R, K] and int8 [N, K]."""
    if x.is_cuda:  # its product takes sizes in eights, and no few rows
        rows, columns = len(x), len(codes)
        x = F.pad(x, (0, -x.shape[1] % 8, 0, max(0, _LEAST_ROWS - rows)))
        codes = F.pad(codes, (0, -codes.shape[1] % 8, 0, -columns % 8))
        return torch._int_mm(x, codes.T)[:rows, :columns]
    return torch._int_mm(x, codes.T)


class Kernels(Protocol):
    """Products of a GPU."""

    def scaled_product(self, x: Tensor, row_scales: Tensor, matrix: Matrix) -> Tensor:
        """As the one here."""

    def grouped_product(
        self, x: Tensor, row_scales: Tensor, counts: Sequence[int], matrices: Sequence[Matrix]
    ) -> Tensor:
        """Those of several matrices, on rows that are sorted by matrix."""


@functools.cache
def _kernels(device: torch.device) -> Kernels | None:
    """The kernels for a device; None: its matrices are unpacked."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    if torch.cuda.get_device_capability(device) < _TRITON_CAPABILITY:
        return None
    from edgekit.runtime.engines.torch import triton_products

    return triton_products
