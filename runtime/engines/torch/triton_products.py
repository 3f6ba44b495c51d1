"""Integer products on NVIDIA GPUs over weights as they are stored: nibbles and group scales become int8 in
registers, and tensor cores accumulate in int32. The results equal those of `products`, to the bit.

A program takes a panel of 64 rows of the matrix and `BM` rows of x. Offsets into panels are those of
`export/formats/native/layout.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgekit.runtime.engines.torch.matrix import PANEL_ROWS, Matrix

#: Columns of a step. Tensor cores take int8 in 32 of them.
_STEP = 64
#: Rows of x that a program may take: few for a short text, many for a canvas.
_BLOCKS = (16, 32, 64, 128)
#: Those of an expert: a canvas of 256 rows, of which each goes to 8 of 128 experts, has 16 for each.
_GROUPED_ROWS = 16


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
def _panel_8bit(
    x: tl.tensor, row_scales: tl.tensor, codes: tl.tensor, scales: tl.tensor, out: tl.tensor,
    panel: tl.tensor, m: tl.tensor, M: tl.tensor,
    K: tl.constexpr, N: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
) -> None:  # fmt: skip
    """Rows m [BM] of out, those below M, and the columns of a panel."""
    r = tl.arange(0, 64)
    total = tl.zeros((BM, 64), dtype=tl.int32)
    QUADS: tl.constexpr = (K + 3) // 4
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(x + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0)
        place = ((panel * QUADS + k[:, None] // 4) * 64 + r[None, :]) * 4 + k[:, None] % 4
        b = tl.load(codes + place, mask=k[:, None] < K, other=128)
        total = tl.dot(a, (b.to(tl.int16) - 128).to(tl.int8), total, out_dtype=tl.int32)
    _store(out, total, row_scales, scales, m, panel * 64 + r, M, N)


@triton.jit
def _panel_4bit(
    x: tl.tensor, row_scales: tl.tensor, packed: tl.tensor, group_scales: tl.tensor, scales: tl.tensor,
    out: tl.tensor, panel: tl.tensor, m: tl.tensor, M: tl.tensor,
    K: tl.constexpr, N: tl.constexpr, G: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
) -> None:  # fmt: skip
    """The same. The product of a code and its group scale is at most 120, so int8 holds it."""
    r = tl.arange(0, 64)
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
    _store(out, total, row_scales, scales, m, panel * 64 + r, M, N)


@triton.jit
def product_8bit(
    x: tl.tensor, row_scales: tl.tensor, codes: tl.tensor, scales: tl.tensor, out: tl.tensor, M: tl.tensor,
    K: tl.constexpr, N: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
) -> None:  # fmt: skip
    """out [M, N] of x int8 [M, K] and codes uint8 [P, ceil(K / 4), 64, 4]."""
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    _panel_8bit(x, row_scales, codes, scales, out, tl.program_id(0), m, M, K, N, BM, BK)


@triton.jit
def product_4bit(
    x: tl.tensor, row_scales: tl.tensor, packed: tl.tensor, group_scales: tl.tensor, scales: tl.tensor,
    out: tl.tensor, M: tl.tensor,
    K: tl.constexpr, N: tl.constexpr, G: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
) -> None:  # fmt: skip
    """out [M, N] of x int8 [M, K], packed uint8 [P, K / 8, 64, 4] and group_scales uint8 [P, K / G, 64]."""
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    _panel_4bit(x, row_scales, packed, group_scales, scales, out, tl.program_id(0), m, M, K, N, G, BM, BK)


@triton.jit
def grouped_8bit(
    x: tl.tensor, row_scales: tl.tensor, codes: tl.tensor, scales: tl.tensor, out: tl.tensor,
    tiles: tl.tensor, places: tl.tensor,
    K: tl.constexpr, N: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
) -> None:  # fmt: skip
    """out [M, N] where rows have different matrices. tiles int32 [T, 3]: a matrix, the first of up to BM
    rows, and where the rows of that matrix end; places int64 [matrices, 2]: how far codes (in bytes) and
    scales (in floats) lie behind those of the first matrix.
    """
    tile = tiles + tl.program_id(1) * 3
    own, m, M = places + tl.load(tile) * 2, tl.load(tile + 1) + tl.arange(0, BM), tl.load(tile + 2)
    _panel_8bit(
        x, row_scales, codes + tl.load(own), scales + tl.load(own + 1), out, tl.program_id(0), m, M,
        K, N, BM, BK,
    )  # fmt: skip


@triton.jit
def grouped_4bit(
    x: tl.tensor, row_scales: tl.tensor, packed: tl.tensor, group_scales: tl.tensor, scales: tl.tensor,
    out: tl.tensor, tiles: tl.tensor, places: tl.tensor,
    K: tl.constexpr, N: tl.constexpr, G: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
) -> None:  # fmt: skip
    """The same with places int64 [matrices, 3]: of packed and group_scales in bytes, and scales in floats."""
    tile = tiles + tl.program_id(1) * 3
    own, m, M = places + tl.load(tile) * 3, tl.load(tile + 1) + tl.arange(0, BM), tl.load(tile + 2)
    _panel_4bit(
        x, row_scales, packed + tl.load(own), group_scales + tl.load(own + 1), scales + tl.load(own + 2), out,
        tl.program_id(0), m, M, K, N, G, BM, BK,
    )  # fmt: skip


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


def grouped_product(
    x: Tensor, row_scales: Tensor, counts: Sequence[int], matrices: Sequence[Matrix]
) -> Tensor:
    """Float32 [R, N] of int8 rows x [R, K], their scales [R, 1], and matrices in panels of one shape and
    form, in one launch: `counts[i]` rows, behind those of the one before, times matrix i.
    """
    first = matrices[0]
    assert first.scales is not None, "they are quantized"
    n, k = first.rows, first.columns
    out = torch.empty(len(x), n, device=x.device)
    tiles = torch.tensor(row_tiles(counts, _GROUPED_ROWS), dtype=torch.int32)
    places = torch.tensor([_places(each, first) for each in matrices])
    if x.is_cuda:  # from locked memory they are copied behind what the stream does already
        tiles, places = (each.pin_memory().to(x.device, non_blocking=True) for each in (tiles, places))
    grid = (len(first.scales) // PANEL_ROWS, len(tiles))
    shared = {"K": k, "N": n, "BM": _GROUPED_ROWS, "BK": _STEP}
    if first.packed is None:
        grouped_8bit[grid](x, row_scales, first.codes, first.scales, out, tiles, places, **shared)
    else:
        assert first.group_scales is not None, "they are of 4 bits"
        group = k // first.group_scales.shape[1]
        grouped_4bit[grid](
            x, row_scales, first.packed, first.group_scales, first.scales, out, tiles, places, G=group,
            **shared,
        )  # fmt: skip
    return out


def row_tiles(counts: Sequence[int], most: int) -> list[tuple[int, int, int]]:
    """Tiles of up to `most` rows of one matrix: its number, their first row, and where its rows end."""
    tiles, start = [], 0
    for number, count in enumerate(counts):
        tiles += [(number, row, start + count) for row in range(start, start + count, most)]
        start += count
    return tiles


def _places(matrix: Matrix, first: Matrix) -> list[int]:
    """How far the parts of a matrix lie behind those of the first."""
    bytewise = ("codes",) if matrix.packed is None else ("packed", "group_scales")
    far = [getattr(matrix, name).data_ptr() - getattr(first, name).data_ptr() for name in bytewise]
    assert matrix.scales is not None and first.scales is not None, "they are quantized"
    return [*far, (matrix.scales.data_ptr() - first.scales.data_ptr()) // 4]
