"""Stored forms of weights in an ONNX bundle, and the program inputs that stand for them.

    matrix, 16 bits   .weight BF16 [N, K]
    matrix, 8 bits    .codes I8 [K, N], .scales F32 [N]
    matrix, 4 bits    .packed U8 [K, ceil(N/2)], .group_scales U8 [K/G, N], .scales F32 [N]
    table, 8 bits     .codes U8 [V, H] (q + 128), .scales F32 [V]
    table, 16 bits    .weight BF16 [V, H]

A program takes the same tensors (of a table, those of one tile), but for packed matrices: it takes .codes
I8 [K, N] in their place. On some processors it takes int8 codes as uint8, code + 128 (`uint8`).

Byte [k, j] of a packed matrix holds column j in its low nibble and column j + ceil(N/2) in its high one, as
q + 8, so that unpacking writes two contiguous halves of a row. The engine unpacks and multiplies by the
group scale while binding (`runtime/engines/unpack.py`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from edgekit.export.formats import row_major
from edgekit.export.formats.row_major import TABLE_ROLES
from edgekit.export.models.base import WeightSpec
from edgekit.export.ops import unpack_codes
from edgekit.export.quantize import Choice, Quantized
from edgekit.flashload.format import TensorSpec


def placeholders(spec: WeightSpec, choice: Choice) -> dict[str, Tensor]:
    """Untouched tensors with the shapes and types of the program inputs."""
    rows, columns = spec.shape
    if choice.bits == 16:
        return {spec.name + ".weight": torch.empty(rows, columns, dtype=torch.bfloat16)}
    scales = torch.empty(rows)
    if spec.role in TABLE_ROLES:
        return {
            spec.name + ".codes": torch.empty(rows, columns, dtype=torch.uint8),
            spec.name + ".scales": scales,
        }
    return {spec.name + ".codes": torch.empty(columns, rows, dtype=torch.int8), spec.name + ".scales": scales}


def specs(name: str, spec: WeightSpec, choice: Choice) -> tuple[TensorSpec, ...]:
    """The stored tensors of a weight, under the full `name`."""
    if (shared := row_major.specs(name, spec, choice)) is not None:
        return shared
    rows, columns = spec.shape
    scales = TensorSpec(name + ".scales", "F32", (rows,))
    if choice.bits == 8:
        return (TensorSpec(name + ".codes", "I8", (columns, rows)), scales)
    return (
        TensorSpec(name + ".packed", "U8", (columns, (rows + 1) // 2)),
        TensorSpec(name + ".group_scales", "U8", (columns // choice.group_size, rows)),
        scales,
    )


def arrays(name: str, role: str, q: Quantized) -> dict[str, np.ndarray]:
    """The stored arrays of a quantized weight, matching `specs`; BF16 as uint16 bits."""
    if (shared := row_major.arrays(name, role, q)) is not None:
        return shared
    assert q.scales is not None
    scales = {name + ".scales": q.scales.numpy()}
    if q.bits == 8:
        return {name + ".codes": unpack_codes(q.weight, 8).T.contiguous().numpy()} | scales
    assert q.group_scales is not None
    codes = (unpack_codes(q.weight, 4) + 8).to(torch.uint8).T.contiguous()  # [K, N]
    half = (codes.shape[1] + 1) // 2
    low, high = codes[:, :half].clone(), codes[:, half:]
    low[:, : high.shape[1]] |= high << 4
    return {
        name + ".packed": low.numpy(),
        name + ".group_scales": q.group_scales.T.contiguous().numpy(),
    } | scales
