"""Stored forms of weights in a native bundle: layout `native-1`.

A *panel* is 64 rows of a matrix [N, K] (64 columns of the product), P = ceil(N / 64) of them; a *quad* is
four consecutive columns, Q = ceil(K / 4).

    8 bits    .codes U8 [P, Q, 64, 4]: q + 128 of (row 64 p + r, column 4 j + i) at [p, j, r, i]
              .scales F32 [P * 64]
    4 bits    .packed U8 [P, K / 8, 64, 4]: at [p, j, r, i] the column 4 (2 j) + i in the low nibble and
              4 (2 j + 1) + i in the high one, as q + 8
              .group_scales U8 [P, K / G, 64] (1..15), .scales F32 [P * 64]

Columns and rows beyond the matrix are padding that multiplies to zero: 8-bit codes of 128, nibbles of 8,
group scales of 1, scales of 0. What a kernel reads for one step, four columns of 64 rows, is one contiguous
block of 256 bytes. Float vectors, 16-bit matrices and tables: see `row_major`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edgekit.export.errors import ExportError
from edgekit.export.formats import row_major
from edgekit.export.models.base import WeightSpec
from edgekit.export.quantize import Choice, Quantized
from edgekit.flashload.format import TensorSpec

PANEL_ROWS = 64
QUAD = 4
#: A sum of that many products of 8-bit integers fits 32 bits.
EXACT_COLUMNS = 60_000
#: Padding, chosen so that it adds nothing to a product.
ZERO_CODE, ZERO_NIBBLES, PAD_GROUP_SCALE = 128, 0x88, 1


def panels(rows: int) -> int:
    """Panels of a matrix with that many rows."""
    return -(-rows // PANEL_ROWS)


def specs(name: str, spec: WeightSpec, choice: Choice) -> tuple[TensorSpec, ...]:
    """The stored tensors of a weight, under the full `name`.

    Raises:
        ExportError: products of the matrix would not be exact.
    """
    if (shared := row_major.specs(name, spec, choice)) is not None:
        return shared
    rows, columns = spec.shape
    if columns > EXACT_COLUMNS:
        raise ExportError(
            f"{name} has {columns} columns in {choice.bits} bits; products are exact up to {EXACT_COLUMNS}: "
            "keep it in 16 bits with --override"
        )
    count = panels(rows)
    scales = TensorSpec(name + ".scales", "F32", (count * PANEL_ROWS,))
    if choice.bits == 8:
        return (TensorSpec(name + ".codes", "U8", (count, -(-columns // QUAD), PANEL_ROWS, QUAD)), scales)
    return (
        TensorSpec(name + ".packed", "U8", (count, columns // (2 * QUAD), PANEL_ROWS, QUAD)),
        TensorSpec(name + ".group_scales", "U8", (count, columns // choice.group_size, PANEL_ROWS)),
        scales,
    )


def arrays(name: str, role: str, q: Quantized) -> dict[str, np.ndarray]:
    """The stored arrays of a quantized weight, matching `specs`; BF16 as uint16 bits."""
    if (shared := row_major.arrays(name, role, q)) is not None:
        return shared
    assert q.scales is not None
    scales = {name + ".scales": F.pad(q.scales, (0, -len(q.scales) % PANEL_ROWS)).numpy()}
    if q.bits == 8:
        return {name + ".codes": _to_panels(q.weight, ZERO_CODE).numpy()} | scales
    assert q.group_scales is not None
    return {
        name + ".packed": _to_panels(_repack(q.weight), ZERO_NIBBLES).numpy(),
        name + ".group_scales": _group_panels(q.group_scales).numpy(),
    } | scales


def canonical(
    stored: Mapping[str, np.ndarray], shape: tuple[int, ...]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The matrix or table [N, K] of `shape` that the tensors hold (by suffix: `codes`, `scales`...), in the
    form of `edgekit.export.ops`: weight or codes, group scales, scales.

    Raises:
        ExportError: a tensor has another shape, or its padding is not what the layout says.
    """
    if "weight" in stored:
        wide = np.asarray(stored["weight"]).astype(np.uint32) << 16
        return torch.from_numpy(wide.view(np.float32)), None, None
    scales = torch.tensor(stored["scales"])
    if "codes" in stored and stored["codes"].ndim == 2:
        return torch.tensor(stored["codes"]), None, scales
    rows, columns = shape
    scales = _cut(scales, (rows,), 0, "scales")
    if "codes" in stored:
        codes = _cut(_from_panels(torch.tensor(stored["codes"])), (rows, columns), ZERO_CODE, "codes")
        return codes, None, scales
    packed = _from_panels(torch.tensor(stored["packed"]))
    packed = _cut(packed, (rows, columns // 2), ZERO_NIBBLES, "packed")
    group = torch.tensor(stored["group_scales"]).transpose(1, 2).flatten(0, 1)
    group = _cut(group, (rows, group.shape[1]), PAD_GROUP_SCALE, "group_scales")
    return _unpack(packed), group.contiguous(), scales


def _to_panels(x: Tensor, padding: int) -> Tensor:
    """[rows, columns] of bytes to [P, columns / 4, 64, 4], both sizes padded up."""
    rows, columns = x.shape
    if rows % PANEL_ROWS or columns % QUAD:
        x = F.pad(x, (0, -columns % QUAD, 0, -rows % PANEL_ROWS), value=padding)
    # Four bytes move as one word.
    words = x.contiguous().view(torch.int32).unflatten(0, (-1, PANEL_ROWS)).transpose(1, 2)
    return words.reshape(-1).view(torch.uint8).view(*words.shape, QUAD)


def _from_panels(x: Tensor) -> Tensor:
    words = x.flatten(2).view(torch.int32).transpose(1, 2)
    return words.reshape(-1).view(torch.uint8).view(x.shape[0] * PANEL_ROWS, -1)


def _repack(codes: Tensor) -> Tensor:
    """Bytes [N, K / 2] of neighbouring columns (0, 1), (2, 3), (4, 5), (6, 7) to (0, 4), (1, 5), (2, 6),
    (3, 7).
    """
    pairs = codes.unflatten(1, (-1, 2, 2))
    first, second = pairs[:, :, 0], pairs[:, :, 1]
    even, odd = (first & 15) | (second << 4), (first >> 4) | (second & 0xF0)
    return torch.stack((even, odd), -1).flatten(1)


def _unpack(packed: Tensor) -> Tensor:
    """The inverse of `_repack`."""
    pairs = packed.unflatten(1, (-1, 2, 2))
    even, odd = pairs[..., 0], pairs[..., 1]
    first, second = (even & 15) | (odd << 4), (even >> 4) | (odd & 0xF0)
    return torch.stack((first, second), 2).flatten(1)


def _group_panels(group_scales: Tensor) -> Tensor:
    padded = F.pad(group_scales, (0, 0, 0, -len(group_scales) % PANEL_ROWS), value=PAD_GROUP_SCALE)
    return padded.unflatten(0, (-1, PANEL_ROWS)).transpose(1, 2).contiguous()


def _cut(x: Tensor, shape: tuple[int, ...], padding: int, what: str) -> Tensor:
    """`x` without its padding, which must have the value that it is stored with."""
    if any(have < want for have, want in zip(x.shape, shape, strict=True)):
        raise ExportError(f"{what}: hold {list(x.shape)} values, fewer than {list(shape)}")
    for axis, size in enumerate(shape):
        if bool((x.narrow(axis, size, x.shape[axis] - size) != padding).any()):
            raise ExportError(f"{what}: padding is not {padding}; export the bundle again")
    return x[tuple(slice(size) for size in shape)].contiguous()
