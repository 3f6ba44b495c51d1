"""Integer products on NVIDIA GPUs over weights as they are stored: nibbles and group scales become int8 in
registers, and tensor cores accumulate in int32. The results equal those of `products`, to the bit.

A program takes a panel of 64 rows of the matrix and `BM` rows of x. Offsets into panels are those of
`export/formats/native/layout.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgekit.runtime.engines.torch.matrix import PANEL_ROWS, Matrix

#: Columns of a step. Tensor cores take int8 in 32 of them.
_STEP = 64
#: Rows of x that a program may take: few for the rows of an expert, many for a canvas.
_BLOCKS = (16, 32, 64, 128)


@triton.jit
def _store(
    out: tl.tensor,
    total: tl.tensor,
    row_scales: tl.tensor,
    scales: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    M: tl.tensor,
    N: tl.constexpr,
) -> None:
    rows = tl.load(row_scales + m, mask=m < M, other=0.0)
    columns = tl.load(scales + n)
    y = total.to(tl.float32) * (rows[:, None] * columns[None, :])
    tl.store(out + m[:, None] * N + n[None, :], y, mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def product_8bit(
    x: tl.tensor, row_scales: tl.tensor, codes: tl.tensor, scales: tl.tensor, out: tl.tensor, M: tl.tensor,
    K: tl.constexpr, N: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
) -> None:  # fmt: skip
    """out [M, N] of x int8 [M, K] and codes uint8 [P, ceil(K / 4), 64, 4]."""
    panel, r = tl.program_id(0), tl.arange(0, 64)
    m, n = tl.program_id(1) * BM + tl.arange(0, BM), panel * 64 + r
    total = tl.zeros((BM, 64), dtype=tl.int32)
    QUADS: tl.constexpr = (K + 3) // 4
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(x + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0)
        place = ((panel * QUADS + k[:, None] // 4) * 64 + r[None, :]) * 4 + k[:, None] % 4
        b = tl.load(codes + place, mask=k[:, None] < K, other=128)
        total = tl.dot(a, (b.to(tl.int16) - 128).to(tl.int8), total, out_dtype=tl.int32)
    _store(out, total, row_scales, scales, m, n, M, N)


@triton.jit
def product_4bit(
    x: tl.tensor, row_scales: tl.tensor, packed: tl.tensor, group_scales: tl.tensor, scales: tl.tensor,
    out: tl.tensor, M: tl.tensor,
    K: tl.constexpr, N: tl.constexpr, G: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
) -> None:  # fmt: skip
    """out [M, N] of x int8 [M, K], packed uint8 [P, K / 8, 64, 4] and group_scales uint8 [P, K / G, 64]. The
    product of a code and its group scale is at most 120, so int8 holds it.
    """
    panel, r = tl.program_id(0), tl.arange(0, 64)
    m, n = tl.program_id(1) * BM + tl.arange(0, BM), panel * 64 + r
    total = tl.zeros((BM, 64), dtype=tl.int32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(x + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0)
        place = ((panel * (K // 8) + k[:, None] // 8) * 64 + r[None, :]) * 4 + k[:, None] % 4
        pairs = tl.load(packed + place, mask=k[:, None] < K, other=0x88)
        shift = (k[:, None] // 4 % 2 * 4).to(tl.uint8)
        q = ((pairs >> shift) & 15).to(tl.int8) - 8
        groups = (panel * (K // G) + k[:, None] // G) * 64 + r[None, :]
        g = tl.load(group_scales + groups, mask=k[:, None] < K, other=1).to(tl.int8)
        total = tl.dot(a, (q * g).to(tl.int8), total, out_dtype=tl.int32)
    _store(out, total, row_scales, scales, m, n, M, N)


def scaled_product(x: Tensor, row_scales: Tensor, matrix: Matrix) -> Tensor:
    """Float32 [R, N] of int8 rows x [R, K], their scales [R, 1], and a matrix of 4 or 8 bits in panels."""
    assert matrix.scales is not None, "it is quantized"
    rows, n, k = len(x), matrix.rows, matrix.columns
    out = torch.empty(rows, n, device=x.device)
    block = next((size for size in _BLOCKS if rows <= size), _BLOCKS[-1])
    grid = (len(matrix.scales) // PANEL_ROWS, triton.cdiv(rows, block))
    shared = {"K": k, "N": n, "BM": block, "BK": _STEP}
    if matrix.packed is None:
        product_8bit[grid](x, row_scales, matrix.codes, matrix.scales, out, rows, **shared)
    else:
        assert matrix.group_scales is not None, "it is of 4 bits"
        group = k // matrix.group_scales.shape[1]
        product_4bit[grid](
            x, row_scales, matrix.packed, matrix.group_scales, matrix.scales, out, rows, G=group, **shared
        )
    return out
